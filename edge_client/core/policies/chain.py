"""A chain that keeps growing while verdicts travel (AMUSD, PEARL and PicoSpec are of this kind)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import Candidate, GrowthView, can_expand, unsent


class ChainPolicy:
    """The draft's best token after its best token, as far as the path is likelier than `cut`."""

    name = "chain"
    fill = True

    def __init__(self, cut: float = 0.02, max_depth: int = 64) -> None:
        if not 0 < cut < 1:
            raise UserError(f"cut is {cut}; it must lie in (0, 1)")
        if max_depth < 1:
            raise UserError(f"max_depth is {max_depth}; it must be at least 1")
        self._min_worth = math.log(cut)
        self._max_depth = max_depth

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
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
