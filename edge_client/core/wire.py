"""What the edge sent on a stream: numbered nodes, in messages that the answers tell of (docs/protocol.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from common.draft import Draft
from common.errors import LocalError
from common.messages import Propose, pack_logprob
from common.tree import Node, SpeculationTree
from edge_client.core.drafter import Expansion


class Outgoing:
    """One stream, from `Open` on, which left at `opened_at` (seconds). Node ids are 1, 2, 3 ... as sent."""

    def __init__(self, opened_at: float = 0.0) -> None:
        self.opened_at = opened_at
        self.nudged = False  # an empty Propose was sent since the last Commit
        self._next = 1
        self._sent_at = deque[tuple[int, float]]()  # (n-th Propose, seconds)
        self._num_proposes = 0
        self._unseen = 0  # committed tokens not yet reported in a Propose

    def committed(self, count: int) -> None:
        """A Commit of so many tokens has come."""
        self._unseen += count
        self.nudged = False

    def left_at(self, echo: int) -> float | None:
        """When the `echo`-th Propose left, seconds; each is told once (RFC 9002, 5.1)."""
        sent_at = None
        while self._sent_at and self._sent_at[0][0] <= echo:
            number, at = self._sent_at.popleft()
            sent_at = at if number == echo else None
        return sent_at

    def propose(
        self,
        tree: SpeculationTree,
        nodes: Sequence[Node],
        now: float,
        drawn: Mapping[int, Expansion] | None = None,
    ) -> Propose:
        """Number `nodes` (unsent, parents first or sent before) and pack them in a message; it leaves now.

        Where drafts are drawn, `drawn` has by node id what was drawn below it, and elder children come first.
        """
        self._num_proposes += 1
        self._sent_at.append((self._num_proposes, now))
        seen, self._unseen = self._unseen, 0
        tokens, logprobs, deltas = list[int](), bytearray(), list[int]()
        drafts = list[Draft | None]()
        for node in nodes:
            if drawn is not None:
                drafts.append(_untold(tree, node, drawn))
            tokens.append(node.token)
            logprobs.append(pack_logprob(node.logprob))
            deltas.append(self._take(tree, node))
        anchored = 0 in deltas
        chain = deltas.count(1) == len(deltas) - (anchored and deltas[0] == 0)  # as `parent_deltas` tells
        anchor = tree.tip_position if anchored else None
        told = tuple(drafts) if any(drafts) else ()
        return Propose(tuple(tokens), bytes(logprobs), () if chain else tuple(deltas), anchor, seen, told)

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


def _untold(tree: SpeculationTree, node: Node, drawn: Mapping[int, Expansion]) -> Draft | None:
    """What the node was drawn from, if it is the first to be sent of those drawn there."""
    assert node.parent is not None, "the tip is nobody's to send"
    found = drawn.get(node.parent)
    if found is None or found.draft is None:
        raise LocalError(f"node {node.id} is to be sent, and it is not known what it was drawn from")
    sent = sum(1 for child in tree.live[node.parent].children.values() if tree.live[child].wire_id)
    if found.tokens[sent] != node.token:
        raise LocalError(f"node {node.id} is to be sent before one that was drawn before it")
    return None if sent else found.draft
