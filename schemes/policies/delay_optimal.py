"""Delay-optimal synchronous blocks (UCB-SpecStop, arXiv 2606.20591)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import GrowthView
from edge_client.core.policies.plain import SyncPolicy
from schemes.policies.rounds import MAX_BLOCK, round_time, tokens_per_round


class DelayOptimalPolicy(SyncPolicy):
    """Synchronous blocks whose length follows the delay, after UCB-SpecStop (arXiv 2606.20591).

    Every length is an arm of a bandit whose index is a ratio of sums, time over tokens, less a bonus that
    shrinks as the arm is known. The geometric law at the measured acceptance stands for `PRIOR_ROUNDS` rounds
    of each arm; a round of k tokens counts for every shorter arm, too: it shows their outcome.
    """

    name = "sync_delay_optimal"
    PRIOR_ROUNDS = 20.0

    def __init__(self, beta: float = 0.01) -> None:
        super().__init__(block=1)
        if not 0 <= beta < math.inf:
            raise UserError(f"beta is {beta}; it must be finite and 0 or more")
        self._beta = beta  # seconds; weight of the bonus
        self._rounds = [0] * (MAX_BLOCK + 1)  # by length
        self._tokens = [0] * (MAX_BLOCK + 1)
        self._num_rounds = 0
        self._sent_from: int | None = None  # tip position of the block in flight

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.num_sent and not view.tree.num_speculative:
            self._count_round(view)
            self.block = min(range(1, MAX_BLOCK + 1), key=lambda k: self.index(view, k))
        return super().expand(view)

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = super().send(view)
        if nodes:
            self._sent_from = view.tree.tip_position
        return nodes

    def index(self, view: GrowthView, block: int) -> float:
        """Return optimistic seconds per token: the arm with the least is taken."""
        expected = tokens_per_round(block, min(1.0, view.acceptance.ratio))
        rounds = self._rounds[block] + self.PRIOR_ROUNDS
        tokens = self._tokens[block] + self.PRIOR_ROUNDS * expected
        bonus = self._beta * math.sqrt(rounds * math.log(self._num_rounds + 1)) / tokens
        return round_time(view, block) * rounds / tokens - bonus

    def _count_round(self, view: GrowthView) -> None:
        if self._sent_from is None:
            return
        tokens, self._sent_from = view.tree.tip_position - self._sent_from, None
        self._num_rounds += 1
        for block in range(1, self.block + 1):
            self._rounds[block] += 1
            self._tokens[block] += min(tokens, block + 1)
