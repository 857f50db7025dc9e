"""Growth policies that measure nothing: none, and synchronous blocks."""

from __future__ import annotations

from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import GrowthPolicy, GrowthView, Offered, check_counts, expandable, unsent


class OffPolicy(GrowthPolicy):
    """Proposes nothing, so the verifier fills: ordinary server streaming."""

    name = "off"
    fill = True

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return ()

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        return ()


class SyncPolicy(GrowthPolicy):
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
