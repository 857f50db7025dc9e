"""The fallback while no server is there: show the draft's own guess, marked as such, or wait, or fail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from common.calibration import Confidence, promised
from common.messages import FinishReason
from common.tree import Node
from edge_client.core.effects import (
    ChangeMode,
    Effect,
    Expansion,
    Fallback,
    Mode,
    ModeStatus,
    Preview,
    PreviewEnds,
    SessionConfig,
    Withdraw,
)
from edge_client.core.policies.base import GrowthView, can_expand
from edge_client.core.policies.governor import Governor


class Offline:
    """Tracks how long a session has been alone, and which guess its user sees.

    The session is alone from its start, or from the loss of an open stream, until the next stream opens.
    After `patience` seconds (None: never) the fallback begins; the session is `active` while it guesses. Only
    a Commit or the text's end ends the fallback: a verifier that opens and drops is no help.

    The guess goes depth first along the draft's own choices, whatever their promise and the policy's cuts.
    The power budget of the policy's `governor` holds.
    """

    def __init__(self, config: SessionConfig, governor: Governor | None) -> None:
        self.active = False
        self.is_told = False  # the user knows that no server is there
        self.preview: list[int] = []  # shown after the committed text and not withdrawn
        self._config, self._ends = config, config.ends
        self._fallback = config.fallback
        self._patience = config.patience
        self._governor = governor
        self._alone_since = 0.0
        self.due_at: float | None = None  # when patience ends
        self._spent = 0.0  # seconds alone since the last text, the present outage excluded
        self._head: Node | None = None  # the guess's last node; None: nothing may follow it
        self._end_told = False  # the user knows that the guess is finished
        self._draft_at: float | None = None  # when the power budget allows the next draft step

    @property
    def timer_at(self) -> float | None:
        """The second at which the session must check again, without any input."""
        return self._draft_at if self.active else self.due_at

    # Inputs -----------------------------------------------------------------------------------------------

    def left_alone(self, now: float) -> None:
        """Note that no stream is open. For `Fallback.FAIL` the time alone counts until text comes."""
        if self._patience is None or self.active or (self.is_told and self._fallback is Fallback.WAIT):
            return
        self._alone_since = now
        spent = self._spent if self._fallback is Fallback.FAIL else 0.0
        self.due_at = now + max(0.0, self._patience - spent)

    def opened(self, now: float) -> None:
        """Note that a stream is open."""
        if self.due_at is not None:
            self._spent += now - self._alone_since
            self.due_at = None

    def asks_after(self, now: float) -> float:
        """Return the seconds from a stream's opening to the probe of its verifier, in time for an answer."""
        return math.inf if self.due_at is None or self.due_at <= now else 0.5 * (self.due_at - now)

    def put_off(self, now: float, asked_at: float) -> None:
        """Put the fallback off past the next probe at `asked_at`: the verifier answers, but has not opened
        yet."""
        if self.due_at is not None and self._patience is not None:
            self._alone_since = now
            self.due_at = asked_at + 0.5 * self._patience

    def give_up(self) -> None:
        """Stop guessing because the drafter is gone; the shown guess stays until text comes."""
        self._patience = self.due_at = self._draft_at = None
        self.active = False

    def is_due(self, now: float) -> bool:
        """Return whether patience has ended."""
        return self.due_at is not None and now >= self.due_at

    def fails(self, now: float) -> bool:
        """Return whether the session must end now."""
        return self._fallback is Fallback.FAIL and self.is_due(now)

    def begin(self, now: float) -> list[Effect]:
        """Begin the fallback, which is due, and show it at once, before there is a guess."""
        if self._fallback is Fallback.FAIL:
            return []
        self.due_at, self.is_told = None, True
        self.active = self._fallback is Fallback.DRAFT
        why = f"the verifier has not answered for {self.alone_for(now):.1f} s"
        if not self.active:
            return [ChangeMode(ModeStatus(Mode.WAITING, f"{why}: the text goes on when one does"))]
        guess = "what follows is the draft's own guess, which no target has seen"
        return [ChangeMode(ModeStatus(Mode.DEVICE_ONLY, f"{why}: {guess}"))]

    def alone_for(self, now: float) -> float:
        """Return the seconds without a server."""
        return now - self._alone_since + (self._spent if self._fallback is Fallback.FAIL else 0.0)

    # The target -------------------------------------------------------------------------------------------

    def committed(self, start: int, tokens: Sequence[int]) -> list[Effect]:
        """Take the target's `tokens` from `start` on; return the effects to show before them."""
        self._spent = 0.0
        agreed, preview = 0, self.preview
        while agreed < min(len(tokens), len(preview)) and tokens[agreed] == preview[agreed]:
            agreed += 1
        wrong = agreed < min(len(tokens), len(preview))
        effects = self._withdraw(start + agreed, agreed) if wrong else []
        del preview[: len(tokens)]
        return effects

    def answered(self, now: float, own: ModeStatus) -> ChangeMode:
        """Return to the policy's `own` mode, because the verifier writes again."""
        self.is_told = self.active = self._end_told = False
        self._draft_at = None
        away = f"the verifier writes again after {now - self._alone_since:.1f} s"
        return ChangeMode(ModeStatus(own.mode, f"{away}; {own.why}"))

    def finished(self, position: int) -> list[Effect]:
        """End the text at `position`; any guess beyond is void."""
        return self._withdraw(position + 1, 0)

    # The guess --------------------------------------------------------------------------------------------

    def extend(self, view: GrowthView, said: Mapping[int, Expansion], confidence: Confidence) -> list[Effect]:
        """Show the draft's expansions by node id, and report once when the guess is finished."""
        path = self._follow(view, said, confidence)
        guess, last = [node.token for node in path], path[-1] if path else view.tree.tip
        shown, start = len(self.preview), view.tree.tip_position + 1
        effects: list[Effect] = []
        if guess[:shown] != self.preview:  # only if the path differs from that of an earlier outage
            effects += self._withdraw(start, 0)
            shown = 0
        if len(guess) > shown:
            self.preview += guess[shown:]
            self._end_told = False
            effects.append(Preview(start + shown, tuple(guess[shown:])))
        is_whole = last.position >= view.last_position
        if (is_whole or self._head is None) and not self._end_told:
            self._end_told = True
            whole = FinishReason.LENGTH if is_whole else None
            reason = FinishReason.STOP if self._ends_text(last) else whole
            effects.append(PreviewEnds(last.position, reason))
        return effects

    def expand(self, view: GrowthView) -> Sequence[Node]:
        """Return the node to draft next, the guess's end; none if finished or without power budget."""
        head, self._draft_at = self._head, None
        if head is None or not can_expand(view, head):
            return ()
        if self._governor is not None:
            at = self._governor.power_at(view.now)
            if at > view.now:
                self._draft_at = at
                return ()
            self._governor.began(view)
        return (head,)

    def _follow(self, view: GrowthView, said: Mapping[int, Expansion], confidence: Confidence) -> list[Node]:
        """Follow the draft's own path below the tip as far as it is known."""
        tree, path, node = view.tree, list[Node](), view.tree.tip
        while not self._is_last(node, len(path)) and node.position < view.last_position:
            expansion = said.get(node.id)
            if expansion is None or not expansion.tokens:
                break
            child = node.children.get(expansion.tokens[0])
            if child is None:
                node = tree.grow(node, expansion.tokens[0], promised(confidence, expansion.scores)[0])
            else:
                node = tree.live[child]
            path.append(node)
        self._head = None if self._is_last(node, len(path)) else node
        return path

    def _is_last(self, node: Node, depth: int) -> bool:
        longest = self._config.max_preview
        return (longest is not None and depth >= longest) or self._ends_text(node)

    def _ends_text(self, node: Node) -> bool:
        return node.position >= len(self._config.prompt) and node.token in self._ends

    def _withdraw(self, start: int, kept: int) -> list[Effect]:
        void = tuple(self.preview[kept:])
        del self.preview[kept:]
        if void:
            self._end_told = False
        return [Withdraw(start, void)] if void else []
