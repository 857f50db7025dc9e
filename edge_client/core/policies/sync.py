"""Synchronous blocks: draft k tokens, send them, wait for the verdict (Leviathan 2023; the classic split)."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import Candidate, GrowthView, expandable, unsent


class SyncPolicy:
    """One chain of `block` tokens per round trip. Runs without fill: the verifier waits for the block."""

    name = "sync"
    fill = False

    def __init__(self, block: int = 4) -> None:
        if block < 1:
            raise UserError(f"block is {block}; a block has at least 1 token")
        self.block = block

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
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
        """The block, cut where the text must end and by what the verifier will hold; at least one."""
        room = view.last_position - view.tree.tip_position
        return max(1, min(self.block, room, view.credit))
