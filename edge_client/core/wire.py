"""Numbering nodes on a stream, and the Propose that carries them (docs/protocol.md, rules on nodes)."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import LocalError
from common.messages import Propose, pack_logprob
from common.tree import Node, SpeculationTree


class WireNumbers:
    """Node ids of one stream: 1, 2, 3 ... in the order of sending."""

    def __init__(self) -> None:
        self._next = 1

    def propose(self, tree: SpeculationTree, nodes: Sequence[Node], seen_advance: int) -> Propose:
        """Number `nodes` (unsent, parents first or sent before) and pack them in one message."""
        tokens, logprobs, deltas = list[int](), bytearray(), list[int]()
        for node in nodes:
            tokens.append(node.token)
            logprobs.append(pack_logprob(node.logprob))
            deltas.append(self._take(tree, node))
        anchored = 0 in deltas
        chain = deltas.count(1) == len(deltas) - (anchored and deltas[0] == 0)  # as `parent_deltas` tells
        anchor = tree.tip_position if anchored else None
        return Propose(tuple(tokens), bytes(logprobs), () if chain else tuple(deltas), anchor, seen_advance)

    def _take(self, tree: SpeculationTree, node: Node) -> int:
        """Give the node its number; how many ids before it its parent is, 0 for the tip."""
        number = node.wire_id = self._next
        self._next = number + 1
        if node.parent == tree.tip.id:
            return 0
        parent = tree.live.get(node.parent or 0)
        if parent is None or not 0 < parent.wire_id < number:
            raise LocalError(f"node {node.id} is to be sent before its parent {node.parent}")
        return number - parent.wire_id
