"""Growth policies that measure nothing: none, synchronous blocks, a chain, and a tree by path probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.tree import Node
from edge_client.core.policies.base import (
    GrowthView,
    Offered,
    as_wide_as_it_pays,
    can_expand,
    check_counts,
    check_shares,
    expandable,
    sort_likeliest_first,
    unsent,
)


class OffPolicy:
    """Proposes nothing, so the verifier fills: ordinary server streaming."""

    name = "off"
    fill = True

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return ()

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        return ()


class SyncPolicy:
    """Drafts one chain of `block` tokens per round trip, without fill (Leviathan 2023)."""

    name = "sync"
    fill = False

    def __init__(self, block: int = 4) -> None:
        check_counts(block=block)
        self.block = block

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return candidates[:1]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.num_sent or view.tree.num_speculative >= self._depth(view):
            return ()
        return expandable(view)[-1:]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        if view.num_sent or len(nodes) < self._depth(view):
            return ()
        return nodes[: view.credit_left]

    def _depth(self, view: GrowthView) -> int:
        """Return the block, cut at the text's end and by the verifier's credit; at least one."""
        room = view.last_position - view.tree.tip_position
        return max(1, min(self.block, room, view.credit))


class ChainPolicy:
    """Drafts the best token after the best token while verdicts travel, as long as the path is likelier than
    `cut`. AMUSD, PEARL and PicoSpec work much like this; `published` has them."""

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


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Bounds a tree's width and depth. Tuned for RTT 20 to 200 ms, on demo prompts outside the reported
    figures. Draft steps took 0.6 ms + 0.55 a node, and 5 ms + 0.3 a node."""

    width: int = 4  # nodes drafted in one step at most
    max_children: int = 3  # of one node
    cut: float = 0.002  # paths less likely than this, seen from the tip, are not grown

    def __post_init__(self) -> None:
        check_counts(width=self.width, max_children=self.max_children)
        check_shares(cut=self.cut)


class TreePolicy:
    """Drafts the likeliest unexpanded nodes, as many as pay up to `width`, and sends all, likeliest first."""

    name = "tree"
    fill = True

    def __init__(self, settings: TreeSettings | None = None) -> None:
        self.settings = settings or TreeSettings()
        self._min_worth = math.log(self.settings.cut)

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        least = self._min_worth - view.tree.worth(node)
        return [c for c in candidates[: self.settings.max_children] if c.logprob >= least]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        tree = view.tree
        if tree.num_speculative >= view.credit:
            return ()
        least = self._min_worth + tree.tip.path_logprob
        frontier = [node for node in expandable(view) if node.path_logprob >= least]
        sort_likeliest_first(frontier)
        promises = [(math.exp(tree.worth(node)), node) for node in frontier[: self.settings.width]]
        return as_wide_as_it_pays(view, promises, self.settings.width)[0]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        sort_likeliest_first(nodes)
        return nodes[: view.credit_left]
