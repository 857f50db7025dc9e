"""A tree by path probability, which measures nothing (SpecInfer, arXiv 2305.09781).

Its defaults were tuned for RTT 20 to 200 ms, on demo prompts outside the reported figures. Draft steps took
0.6 ms + 0.55 a node, and 5 ms + 0.3 a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import (
    GrowthPolicy,
    GrowthView,
    Offered,
    as_wide_as_it_pays,
    check_counts,
    check_shares,
    expandable,
    sort_likeliest_first,
    unsent,
)


class TreePolicy(GrowthPolicy):
    """Drafts the likeliest unexpanded nodes, as many as pay up to `width`, and sends all, likeliest first."""

    name = "tree"
    fill = True

    def __init__(self, width: int = 4, max_children: int = 3, cut: float = 0.002) -> None:
        """Draft `width` nodes in one step at most, and `max_children` of one node; grow no path less likely
        than `cut`, seen from the tip."""
        check_counts(width=width, max_children=max_children)
        check_shares(cut=cut)
        self._width, self._max_children = width, max_children
        self._min_worth = math.log(cut)

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        least = self._min_worth - view.tree.worth(node)
        return [c for c in candidates[: self._max_children] if c.logprob >= least]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        tree = view.tree
        if tree.num_speculative >= view.credit:
            return ()
        least = self._min_worth + tree.tip.path_logprob
        frontier = [node for node in expandable(view) if node.path_logprob >= least]
        sort_likeliest_first(frontier)
        promises = [(math.exp(tree.worth(node)), node) for node in frontier[: self._width]]
        return as_wide_as_it_pays(view, promises, self._width)[0]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        sort_likeliest_first(nodes)
        return nodes[: view.credit_left]
