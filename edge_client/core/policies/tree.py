"""Best-first tree over path probability: several nodes a draft step, siblings ranked under the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import (
    Candidate,
    GrowthView,
    as_wide_as_it_pays,
    expandable,
    sort_likeliest_first,
    unsent,
)


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How wide and how deep. Searched for RTT 20 to 200 ms with draft steps of 0.6 ms + 0.55 a node and of
    5 ms + 0.3 a node, on demo prompts other than those that figures are reported on."""

    width: int = 4  # nodes drafted in one step at most
    max_children: int = 3  # of one node
    cut: float = 0.002  # paths less likely than this, seen from the tip, are not grown

    def __post_init__(self) -> None:
        if self.width < 1 or self.max_children < 1:
            raise UserError(f"width {self.width} and max_children {self.max_children} must be at least 1")
        if not 0 < self.cut < 1:
            raise UserError(f"cut is {self.cut}; it must lie in (0, 1)")


class TreePolicy:
    """Drafts the likeliest unexpanded nodes first and sends every node that it keeps, likeliest first.

    A step is as wide as pays on this device, and at most `width`.
    """

    name = "tree"
    fill = True

    def __init__(self, settings: TreeSettings | None = None) -> None:
        self.settings = settings or TreeSettings()
        self._min_worth = math.log(self.settings.cut)

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        least = self._min_worth - view.tree.worth(node)
        children = [c for c in candidates[: self.settings.max_children] if c.logprob >= least]
        return children

    def expand(self, view: GrowthView) -> Sequence[Node]:
        tree = view.tree
        if tree.num_speculative >= view.credit:
            return ()
        least = self._min_worth + tree.tip.path_logprob
        frontier = [node for node in expandable(view) if node.path_logprob >= least]
        sort_likeliest_first(frontier)
        promises = [(math.exp(view.tree.worth(node)), node) for node in frontier[: self.settings.width]]
        return as_wide_as_it_pays(view, promises, self.settings.width)[0]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        sort_likeliest_first(nodes)
        return nodes[: view.credit_left]
