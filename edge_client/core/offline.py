"""While no server is there: the user reads the draft's own guess, told apart, or waits, or is told to go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from common.tree import Node
from edge_client.core.confidence import Confidence
from edge_client.core.config import Fallback
from edge_client.core.drafter import Expansion
from edge_client.core.effects import ChangeMode, Effect, Preview, PreviewEnds, Withdraw
from edge_client.core.policies.base import GrowthView
from edge_client.core.policies.governor import Mode, Standing
from edge_client.core.policies.offline import OfflineChain


class Offline:
    """Knows how long a session has been alone, and which guess its user sees.

    It is alone from its start, or from the loss of an open stream, until the next stream opens; after
    `patience` seconds of that its fallback begins (guessing: it is `active`), and only a Commit or the text's
    end ends that: a verifier that opens and drops helps nobody. None for `patience`: never. A verifier that
    has not opened the stream yet and answers a question beside it is no reason for a fallback.
    """

    def __init__(self, patience: float | None, chain: OfflineChain, fallback: Fallback) -> None:
        self.active = False
        self.preview: list[int] = []  # shown after the committed text and not withdrawn
        self._fallback = fallback
        self._patience = patience
        self._chain = chain
        self._alone_since = 0.0
        self._due_at: float | None = None  # when patience ends
        self._told = False  # the user knows of the mode
        self._end_told = False  # ... and that the guess is finished
        self._spent = 0.0  # seconds alone since the last text, before it was left alone last

    @property
    def is_told(self) -> bool:
        """Whether the user knows that no server is there."""
        return self._told

    @property
    def timer_at(self) -> float | None:
        """When the session should look again though nothing has come."""
        return self._chain.draft_at if self.active else self._due_at

    # Inputs -----------------------------------------------------------------------------------------------

    def left_alone(self, now: float) -> None:
        """There is no open stream from now on. Who is to fail does so even if verifiers open and drop: what
        was spent alone counts until text comes."""
        if self._patience is None or self.active or (self._told and self._fallback is Fallback.WAIT):
            return
        self._alone_since = now
        spent = self._spent if self._fallback is Fallback.FAIL else 0.0
        self._due_at = now + max(0.0, self._patience - spent)

    def opened(self, now: float) -> None:
        """A stream is open."""
        if self._due_at is not None:
            self._spent += now - self._alone_since
            self._due_at = None

    def asks_after(self, now: float) -> float:
        """Seconds from the opening of a stream to the question whether its verifier is there: early enough
        for an answer before the fallback is due."""
        return math.inf if self._due_at is None or self._due_at <= now else 0.5 * (self._due_at - now)

    def put_off(self, now: float, asked_at: float) -> None:
        """The verifier answers and has not opened the stream yet: there is a server, so the fallback is not
        due before the next question, at `asked_at`, was left without an answer."""
        if self._due_at is not None and self._patience is not None:
            self._alone_since = now
            self._due_at = asked_at + 0.5 * self._patience

    def give_up(self) -> None:
        """The drafter is gone; what is shown stays until the target says more."""
        self._patience = self._due_at = self._chain.draft_at = None
        self.active = False

    def fails(self, now: float) -> bool:
        """Whether the session must end now."""
        return self._fallback is Fallback.FAIL and self._is_due(now)

    def begin(self, now: float) -> list[Effect]:
        """The fallback, if it is due: the user learns of it at once, before there is anything to show."""
        if not self._is_due(now) or self._fallback is Fallback.FAIL:
            return []
        self._due_at, self._told = None, True
        self.active = self._fallback is Fallback.DRAFT
        return [ChangeMode(self._standing(now))]

    def alone_for(self, now: float) -> float:
        """Seconds without a server."""
        return now - self._alone_since + (self._spent if self._fallback is Fallback.FAIL else 0.0)

    def _is_due(self, now: float) -> bool:
        return self._due_at is not None and now >= self._due_at

    # The guess --------------------------------------------------------------------------------------------

    def extend(self, view: GrowthView, said: Mapping[int, Expansion], confidence: Confidence) -> list[Effect]:
        """Show what the draft has found by now, and tell once that it is all."""
        guess = [node.token for node in self._chain.follow(view, said, confidence)]
        shown, start = len(self.preview), view.tree.tip_position + 1
        effects: list[Effect] = []
        if guess[:shown] != self.preview:  # only if the path is another one than that of an earlier outage
            effects += self._withdraw(start, 0)
            shown = 0
        effects += self._show(start + shown, guess[shown:])
        if self._chain.finished and not self._end_told:
            self._end_told = True
            effects.append(PreviewEnds(view.tree.tip_position + len(guess), self._chain.reason))
        return effects

    def expand(self, view: GrowthView) -> Sequence[Node]:
        """Which node to draft next."""
        return self._chain.expand(view)

    def committed(self, start: int, tokens: Sequence[int]) -> list[Effect]:
        """The target has written `tokens` from `start` on; what is told before they are shown."""
        self._spent = 0.0
        agreed, preview = 0, self.preview
        while agreed < min(len(tokens), len(preview)) and tokens[agreed] == preview[agreed]:
            agreed += 1
        wrong = agreed < min(len(tokens), len(preview))
        effects = self._withdraw(start + agreed, agreed) if wrong else []
        del preview[: len(tokens)]
        return effects

    def answered(self, now: float, own: Standing) -> list[Effect]:
        """The verifier writes again: back to the policy's `own` standing."""
        told, self._told, self.active, self._end_told = self._told, False, False, False
        self._chain.draft_at = None
        if not told:
            return []
        away = f"the verifier writes again after {now - self._alone_since:.1f} s"
        return [ChangeMode(Standing(own.mode, f"{away}; {own.why}"))]

    def finished(self, position: int) -> list[Effect]:
        """The text ends at `position`; what was guessed beyond is no part of it."""
        return self._withdraw(position + 1, 0)

    def _show(self, start: int, tokens: Sequence[int]) -> list[Effect]:
        if not tokens:
            return []
        self.preview += tokens
        self._end_told = False
        return [Preview(start, tuple(tokens))]

    def _withdraw(self, start: int, kept: int) -> list[Effect]:
        void = tuple(self.preview[kept:])
        del self.preview[kept:]
        if void:
            self._end_told = False
        return [Withdraw(start, void)] if void else []

    def _standing(self, now: float) -> Standing:
        why = f"the verifier has not answered for {self.alone_for(now):.1f} s"
        if self._fallback is Fallback.WAIT:
            return Standing(Mode.WAITING, f"{why}: the text goes on when one does")
        guess = "what follows is the draft's own guess, which no target has seen"
        return Standing(Mode.DEVICE_ONLY, f"{why}: {guess}")
