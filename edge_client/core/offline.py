"""The mode `device-only`: while no server is there the user reads the draft's own guess, told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.tree import Node
from edge_client.core.confidence import Confidence
from edge_client.core.drafter import Expansion
from edge_client.core.effects import ChangeMode, Effect, Preview, Withdraw
from edge_client.core.policies.base import GrowthView
from edge_client.core.policies.governor import Mode, Standing
from edge_client.core.policies.offline import OfflineChain


class Offline:
    """Knows how long a session has been alone, and which guess its user sees.

    It is alone from its start, or from the loss of an open stream, until the next stream opens; after
    `patience` seconds of that it is `active`, and only a Commit or the text's end ends that: a verifier that
    opens and drops helps nobody. None for `patience`: never active.
    """

    def __init__(self, patience: float | None, chain: OfflineChain) -> None:
        self.active = False
        self.preview: list[int] = []  # shown after the committed text and not withdrawn
        self._patience = patience
        self._chain = chain
        self._alone_since = 0.0
        self._due_at: float | None = None  # when patience ends
        self._told = False  # the user knows of the mode

    @property
    def timer_at(self) -> float | None:
        """When the session should look again though nothing has come."""
        return self._chain.draft_at if self.active else self._due_at

    # Inputs -----------------------------------------------------------------------------------------------

    def left_alone(self, now: float) -> None:
        """There is no open stream from now on."""
        if self._patience is not None and not self.active:
            self._alone_since = now
            self._due_at = now + self._patience

    def opened(self) -> None:
        """A stream is open."""
        self._due_at = None

    def give_up(self) -> None:
        """The drafter is gone; what is shown stays until the target says more."""
        self._patience = self._due_at = self._chain.draft_at = None
        self.active = False

    def is_due(self, now: float) -> bool:
        """Whether the guess should be shown and grown now."""
        if self._due_at is not None and now >= self._due_at:
            self._due_at, self.active = None, True
        return self.active

    # The guess --------------------------------------------------------------------------------------------

    def extend(self, view: GrowthView, said: Mapping[int, Expansion], confidence: Confidence) -> list[Effect]:
        """Show what the draft has found by now, after the mode itself when there is something to show."""
        guess = [node.token for node in self._chain.follow(view, said, confidence)]
        shown, start = len(self.preview), view.tree.tip_position + 1
        if guess[:shown] != self.preview:  # only if the path is another one than that of an earlier outage
            return [*self._withdraw(start, 0), *self._show(start, guess, view.now)]
        return self._show(start + shown, guess[shown:], view.now)

    def expand(self, view: GrowthView) -> Sequence[Node]:
        """Which node to draft next."""
        return self._chain.expand(view)

    def committed(self, start: int, tokens: Sequence[int]) -> list[Effect]:
        """The target has written `tokens` from `start` on; what is told before they are shown."""
        agreed, preview = 0, self.preview
        while agreed < min(len(tokens), len(preview)) and tokens[agreed] == preview[agreed]:
            agreed += 1
        wrong = agreed < min(len(tokens), len(preview))
        effects = self._withdraw(start + agreed, agreed) if wrong else []
        del preview[: len(tokens)]
        return effects

    def answered(self, now: float, own: Standing) -> list[Effect]:
        """The verifier writes again: back to the policy's `own` standing."""
        told, self._told, self.active = self._told, False, False
        self._chain.draft_at = None
        if not told:
            return []
        away = f"the verifier writes again after {now - self._alone_since:.1f} s"
        return [ChangeMode(Standing(own.mode, f"{away}; {own.why}"))]

    def finished(self, position: int) -> list[Effect]:
        """The text ends at `position`; what was guessed beyond is no part of it."""
        return self._withdraw(position + 1, 0)

    def _show(self, start: int, tokens: Sequence[int], now: float) -> list[Effect]:
        if not tokens:
            return []
        effects: list[Effect] = [] if self._told else [ChangeMode(self._standing(now))]
        self._told = True
        self.preview += tokens
        return [*effects, Preview(start, tuple(tokens))]

    def _withdraw(self, start: int, kept: int) -> list[Effect]:
        void = tuple(self.preview[kept:])
        del self.preview[kept:]
        return [Withdraw(start, void)] if void else []

    def _standing(self, now: float) -> Standing:
        why = f"the verifier has not answered for {now - self._alone_since:.1f} s"
        guess = "what follows is the draft's own guess and will be replaced"
        return Standing(Mode.DEVICE_ONLY, f"{why}: {guess}")
