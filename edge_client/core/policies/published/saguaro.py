"""SSD / Saguaro (arXiv 2603.03251)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import (
    GrowthView,
    Offered,
    can_expand,
    check_counts,
    likeliest_first,
    main_line,
)
from edge_client.core.policies.published.rounds import delay_optimal_block


def fan_outs(block: int, acceptance: float, budget: float, exponent: float) -> list[float]:
    """Return guesses F_0 ... F_block of the token after 0 ... block accepted, reals that sum to `budget`.

    F_k = F_0 a**(k / (1 + r)), and F_block larger by (1 - a)**(-1 / (1 + r)), where the miss rate falls as
    F**-r (arXiv 2603.03251). The acceptance counts as one within 0.01 and 0.99.
    """
    a, root = min(max(acceptance, 0.01), 0.99), 1.0 / (1.0 + exponent)
    shares = [a ** (place * root) for place in range(block + 1)]
    shares[block] *= (1.0 - a) ** -root
    return [budget * share / sum(shares) for share in shares]


class SaguaroPolicy:
    """Sends blocks, and caches the next block of each likely verdict (SSD / Saguaro, arXiv 2603.03251).

    While a block is in flight its likely ends (k accepted, another token) each get a block of their own, all
    drafted together. If the verdict is one of them its block goes out at once, else a new one is drafted.
    """

    name = "saguaro"
    fill = False

    def __init__(self, budget: int = 12, exponent: float = 1.0) -> None:
        check_counts(budget=budget)
        if not 0 < exponent < math.inf:
            raise UserError(f"exponent is {exponent}; it must be finite and above 0")
        self._budget = budget  # ends that are foreseen
        self._exponent = exponent  # r of `fan_outs`
        self._block = 1

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        place = self._place(view, node)
        fans = fan_outs(self._block, view.acceptance.ratio, self._budget, self._exponent)
        fan_out = round(fans[min(place, self._block)])
        return candidates[: max(1, fan_out)] if place >= self._block else candidates[: 1 + fan_out]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.tree.num_speculative:
            self._block = delay_optimal_block(view)
        if view.num_sent:
            leaves = [node for node in self._cache_leaves(view) if can_expand(view, node)]
            return sorted(leaves, key=likeliest_first)[: 2 * self._budget]
        line = list(main_line(view, view.tree.tip))
        return line[-1:] if len(line) <= self._depth(view) and can_expand(view, line[-1]) else ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        block = list(main_line(view, view.tree.tip))[1:]
        if view.num_sent or len(block) < self._depth(view):
            return ()
        sent = block[: self._depth(view)]
        self._block = delay_optimal_block(view)  # of the blocks that are drafted in the meantime
        return sent

    def _cache_leaves(self, view: GrowthView) -> Iterator[Node]:
        """Yield the block's last node, then the end of every foreseen block that is not complete."""
        live = view.tree.live
        known = [node for node in live.values() if node.wire_id or node is view.tree.tip]
        for node in known:
            if not node.children:
                yield node
            for child in node.children.values():
                if not live[child].wire_id:
                    line = list(main_line(view, live[child]))
                    if len(line) <= self._block:
                        yield line[-1]

    def _place(self, view: GrowthView, node: Node) -> int:
        """Tokens of its block that come before what follows the node."""
        above, place = node, 0
        while above is not view.tree.tip and above.parent is not None:
            parent = view.tree.live[above.parent]
            if view.num_sent and not above.wire_id and (parent.wire_id or parent is view.tree.tip):
                break  # a foreseen end: its block begins here
            above, place = parent, place + 1
        return place

    def _depth(self, view: GrowthView) -> int:
        room = view.last_position - view.tree.tip_position
        return max(1, min(self._block, room, view.credit))
