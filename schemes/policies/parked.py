"""Branches that are parked at the verifier (our own; docs/schemes.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import (
    GrowthPolicy,
    GrowthView,
    Offered,
    can_expand,
    check_counts,
    check_shares,
    expandable,
    unsent,
)
from schemes.policies.rounds import likeliest_first, main_line, round_time


class ParkedPolicy(GrowthPolicy):
    """Sends a chain and branches ahead and parks them at the verifier (our own; docs/schemes.md).

    A miss that a branch foresaw costs no round trip: the branch is already at the verifier.
    """

    name = "parked"
    fill = False

    def __init__(self, fan_out: int = 2, branch_depth: int = 3, width: int = 6, cut: float = 0.01) -> None:
        check_counts(branch_depth=branch_depth, width=width)
        if fan_out < 0:
            raise UserError(f"fan_out is {fan_out}; it must be 0 or more")
        check_shares(cut=cut)
        self._fan_out = fan_out  # branches at each position of the chain
        self._branch_depth = branch_depth  # tokens of a branch
        self._width = width  # nodes drafted in one step, the chain's included
        self._min_worth = math.log(cut)  # branches less likely than this, seen from the tip, are not begun

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        if off_line(view, node):
            return candidates[:1]
        least = self._min_worth - view.tree.worth(node)
        beside = [each for each in candidates[1 : 1 + self._fan_out] if each.logprob >= least]
        return [*candidates[:1], *beside]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= view.credit:
            return ()
        line = list(main_line(view, view.tree.tip))
        ahead = round_time(view, 0) / max(view.pace.rows.predict(1), 1e-4)
        on_line = [line[-1]] if len(line) <= max(1.0, ahead) and can_expand(view, line[-1]) else []
        beside = [node for node in expandable(view) if self._may_go_on(view, node)]
        beside.sort(key=likeliest_first)
        return on_line + beside[: self._width - len(on_line)]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = sorted(unsent(view), key=likeliest_first)
        return nodes[: view.credit_left]

    def _may_go_on(self, view: GrowthView, node: Node) -> bool:
        return 0 < off_line(view, node) < self._branch_depth


def off_line(view: GrowthView, node: Node) -> int:
    """Count a branch's nodes down to this one; 0 if it lies on the tip's main line."""
    depth = count = 0
    while node is not view.tree.tip and node.parent is not None:
        depth += 1
        parent = view.tree.live[node.parent]
        if next(iter(parent.children.values())) != node.id:
            count = depth
        node = parent
    return count
