"""Make hints: name a place of the tree by what the edge knows of it (docs/protocol.md, rule 22)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from common.messages import MAX_HINTED, MAX_NODES, Hint
from common.tree import Node, SpeculationTree

WIRE_ID: Callable[[Node], int] = attrgetter("wire_id")


def hint_at(
    tree: SpeculationTree, node: Node, tokens: Sequence[int], wire_id: Callable[[Node], int] = WIRE_ID
) -> Hint | None:
    """Return the hint that `tokens`, likeliest first, may follow a live node. It is for the stream that has
    carried every commit of `tree`. Return None if the path from the edge's own nodes is too long for a hint.

    Args: wire_id, a node's number on that stream; 0 for a node that the edge has not sent.
    """
    path, number = list[int](), 0
    while node is not tree.tip and not (number := wire_id(node)):
        path.append(node.token)
        assert node.parent is not None, "only the tip has no live parent"
        node = tree.live[node.parent]
    if len(path) > MAX_NODES:
        return None
    anchor = 0 if number else tree.tip_position
    return Hint(number, anchor, tuple(reversed(path)), tuple(tokens[:MAX_HINTED]))
