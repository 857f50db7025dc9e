"""SpecEdge (arXiv 2505.17052)."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import UserError
from common.messages import MAX_NODES
from common.tree import Node
from edge_client.core.policies.base import (
    GrowthPolicy,
    GrowthView,
    Offered,
    can_expand,
    check_counts,
    unsent,
)
from schemes.policies.rounds import likeliest_first


class SpecEdgePolicy(GrowthPolicy):
    """Sends a tree per round trip, and grows one ahead of the verdict (SpecEdge, arXiv 2505.17052).

    While a tree is in flight its likeliest leaf and that leaf's likeliest successor are taken for the verdict
    and the next tree is grown there. If both are right it is sent at once, else it dies and a new one begins.
    """

    name = "specedge"
    fill = False

    def __init__(
        self, budget: int = 32, depth: int = 4, beam: int = 8, children: int = 4, proactive: int = 1
    ) -> None:
        check_counts(budget=budget, depth=depth, beam=beam, children=children)
        if depth * beam > MAX_NODES:
            raise UserError(f"depth {depth} times beam {beam} nodes are drafted; take at most {MAX_NODES}")
        if proactive not in (0, 1):
            raise UserError(f"proactive is {proactive}; it must be 1, or 0 to rest while a tree is in flight")
        self._budget = budget  # nodes sent at once
        self._depth = depth  # draft steps of one tree
        self._beam = beam  # nodes drafted in one step
        self._children = children  # of one node
        self._proactive = proactive  # whether a tree is grown ahead of the verdict

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return candidates[: self._children]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.num_sent:
            return self._next_level(view, view.tree.tip)
        if not self._proactive:
            return ()
        leaf = best_sent_leaf(view)
        if can_expand(view, leaf):
            return [leaf]
        children = [view.tree.live[child] for child in leaf.children.values()]
        return self._next_level(view, min(children, key=likeliest_first)) if children else ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        tip = view.tree.tip
        if view.num_sent or self._next_level(view, tip) or any(n.busy for n in view.tree.live.values()):
            return ()
        nodes = sorted(unsent(view), key=likeliest_first)
        return nodes[: min(self._budget, view.credit_left)]

    def _next_level(self, view: GrowthView, root: Node) -> list[Node]:
        """Return the likeliest nodes of the first level that has not been drafted; none if the tree is
        complete."""
        levels = list(view.tree.subtree(root))
        drafted = [node.position for node in levels if node.evaluated or node.busy]
        level = max(drafted, default=root.position - 1) + 1
        if level >= root.position + self._depth:
            return []
        offered = [node for node in levels if node.position == level and can_expand(view, node)]
        return sorted(offered, key=likeliest_first)[: self._beam]


def best_sent_leaf(view: GrowthView) -> Node:
    """Return the likeliest node in flight that has no child in flight; the tip if there is none."""
    live = view.tree.live
    leaves = [
        node
        for node in view.tree.speculative()
        if node.wire_id and not any(live[child].wire_id for child in node.children.values())
    ]
    return min(leaves, key=likeliest_first, default=view.tree.tip)
