"""Numbers the nodes sent on a stream and packs them in messages (docs/protocol.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from common.acceptance import Draft
from common.errors import LocalError, PeerError
from common.messages import NO_WAIT, Propose, Wait, pack_logprob
from common.tree import Node, SpeculationTree

Untold = Callable[[Node], Draft | None]
"""Returns a node's distribution, if the verifier does not have it yet."""


MUCH = 0.125
"""Share of its greater value by which a time of `Wait` must change to be told again."""


def _differs(new: Wait, old: Wait) -> bool:
    return any(abs(one - other) > MUCH * max(one, other) for one, other in zip(new, old, strict=True))


class Outgoing:
    """Tracks the nodes sent on one stream since its `Open` at `opened_at` (seconds). Ids are 1, 2, 3 ..."""

    def __init__(self, opened_at: float = 0.0) -> None:
        self.opened_at = opened_at
        self.wait = NO_WAIT  # that the verifier was told
        self.nudged = False  # an empty Propose was sent since the last Commit
        self._next = 1
        self._sent_at = deque[tuple[int, float]]()  # (n-th Propose, seconds)
        self._num_proposes = 0
        self._unseen = 0  # committed tokens not yet reported in a Propose

    def committed(self, count: int) -> None:
        """Book a Commit of `count` tokens."""
        self._unseen += count
        self.nudged = False

    def check_sent(self, wire_id: int) -> None:
        """Raise `PeerError` for a node that was not sent on this stream."""
        if wire_id >= self._next:
            raise PeerError(f"the verifier names node {wire_id}; {self._next - 1} were sent")

    def left_at(self, echo: int) -> float | None:
        """Return when the `echo`-th Propose left, seconds; only once for each (RFC 9002, 5.1)."""
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
        untold: Untold | None = None,
        wait: Wait = NO_WAIT,
    ) -> Propose:
        """Number `nodes` (unsent, parents first or sent before) and pack them in a message for now. `wait` is
        told with nodes, if it differs much from what the verifier knows."""
        self._num_proposes += 1
        self._sent_at.append((self._num_proposes, now))
        seen, self._unseen = self._unseen, 0
        tokens, logprobs, deltas = list[int](), bytearray(), list[int]()
        drafts = list[Draft | None]()
        for node in nodes:
            if untold is not None:
                drafts.append(untold(node))
            tokens.append(node.token)
            logprobs.append(pack_logprob(node.logprob))
            number = node.wire_id = self._next
            self._next = number + 1
            parent = tree.live.get(node.parent or 0)
            if parent is None or not (parent is tree.tip or 0 < parent.wire_id < number):
                raise LocalError(f"node {node.id} is to be sent before its parent {node.parent}")
            deltas.append(0 if parent is tree.tip else number - parent.wire_id)  # 0 names the tip
        anchored = 0 in deltas
        chain = deltas.count(1) == len(deltas) - (anchored and deltas[0] == 0)  # as `parent_deltas` tells
        anchor = tree.tip_position if anchored else None
        distributions = tuple(drafts) if any(drafts) else ()
        is_news = bool(nodes) and _differs(wait, self.wait)
        self.wait = wait if is_news else self.wait
        return Propose(
            tuple(tokens),
            bytes(logprobs),
            () if chain else tuple(deltas),
            anchor,
            seen,
            distributions,
            wait if is_news else None,
        )
