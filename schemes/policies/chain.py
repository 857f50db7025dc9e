"""A chain that goes on while verdicts travel, and measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import (
    GrowthPolicy,
    GrowthView,
    Offered,
    can_expand,
    check_counts,
    check_shares,
    unsent,
)


class ChainPolicy(GrowthPolicy):
    """Drafts the best token after the best token while verdicts travel, as long as the path is likelier than
    `cut`. AMUSD, PEARL and PicoSpec work much like this."""

    name = "chain"
    fill = True

    def __init__(self, cut: float = 0.02, max_depth: int = 64) -> None:
        check_shares(cut=cut)
        check_counts(max_depth=max_depth)
        self._min_worth = math.log(cut)
        self._max_depth = max_depth

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return candidates[:1]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= min(self._max_depth, view.credit):
            return ()
        for node in reversed(view.tree.live.values()):  # the newest leaf
            if can_expand(view, node) and view.tree.worth(node) >= self._min_worth:
                return (node,)
        return ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        return unsent(view)[: view.credit_left]
