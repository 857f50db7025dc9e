"""Keep what the drafts of one session have won, what others' drafts have cost it, and how many got rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.estimators import RatioEstimator
from common.tree import Node, SpeculationTree

MOST_SAVED = 16.0
"""Most tokens of a session's balance, so that old gains do not pay for a slow phase now."""


def new_pace() -> RatioEstimator:
    """Return an estimator of the tokens that a session writes in the time of a bare step, which has no
    drafts."""
    return RatioEstimator(prior=1.0, prior_weight=4.0, half_life=25.0)


class DraftAccount:
    """Keeps the balance of one session: tokens won by its drafts, less tokens lost by the drafts of others;
    and its pace, by which time is valued.

    `DraftBudget` enters the sums.
    """

    __slots__ = ("balance", "kept", "pace", "promised")

    def __init__(self) -> None:
        self.balance = 1.0  # tokens won by drafts, less tokens lost by the drafts of others
        self.promised = 0.0  # expected accepted drafts of the running step, by the edge's probabilities
        self.kept = RatioEstimator(prior=1.0, prior_weight=4.0)  # accepted drafts per expected ones
        self.pace = new_pace()

    def promise(self, tree: SpeculationTree, drafts: Sequence[Node]) -> None:
        """Note the drafts that the next step evaluates."""
        self.promised = sum(math.exp(tree.worth(node)) for node in drafts)

    def judge(self, num_won: int) -> None:
        """Compare the step's accepted drafts with the expected number."""
        if self.promised or num_won:
            self.kept.add(num_won, self.promised)

    def settle(self, num_won: int, forgiven: float, lost: float) -> None:
        """Enter a step: tokens won by its drafts, forgiven, and lost by the drafts of others."""
        self.balance = min(MOST_SAVED, self.balance + num_won + forgiven - lost)


REFUSED = 0.95  # share of turns with drafts of which no row was taken, from which on a session pauses
FADE = 1 / 32  # of that share: some 95 turns in a row lead to a pause
TRIAL_TURNS = 16  # with drafts, after a pause, until the next one
SHORTEST_PAUSE, LONGEST_PAUSE = 64, 1024  # turns; each is twice as long as the one before


class RowShare:
    """Knows how many rows one session's drafts got in its turns, and how often they came in time and were not
    worth a row. A turn is a step that the session is in."""

    def __init__(self) -> None:
        self.num_turns = 0
        self.num_rows = 0.0  # draft rows of the session in a step, smoothed
        self._refused = 0.0  # share of turns
        self._until = 0  # turn
        self._pause = SHORTEST_PAUSE

    @property
    def pauses(self) -> bool:
        """Whether the edge's drafts are not wanted in this turn."""
        return self.num_turns < self._until

    def offered(self, taken: bool) -> None:
        """Note a step that could have taken drafts of the session's edge."""
        if taken:
            self._until, self._pause = 0, SHORTEST_PAUSE
        elif self.pauses:
            return  # they had left before the pause was told
        self._refused += FADE * ((not taken) - self._refused)
        if self._refused >= REFUSED:
            self._until, self._pause = self.num_turns + self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self._refused = 1.0 - (1.0 - REFUSED) / (1.0 - FADE) ** TRIAL_TURNS

    def turn_over(self, num_drafts: int) -> None:
        """Note the end of a turn with so many draft rows, the verifier's own guesses included."""
        self.num_turns += 1
        self.num_rows += (num_drafts - self.num_rows) / 8
