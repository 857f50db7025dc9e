"""Hold the speculation tree: the tokens below the last committed one, alike on edge and verifier.

The edge grows it, the verifier decides it, both prune it (docs/architecture.md). The root is the *tip*, the
last committed token. Everything here is bookkeeping on ids; no model, no network, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from common.errors import Code, LocalError, PeerError


@dataclass(slots=True)
class Node:
    """A node is one token proposed below a parent, or the tip itself.

    `evaluated` says that this side's model has run on it (the draft on the edge, the target on the verifier);
    `busy` that it is running now. `choice` is the target's and known only on the verifier.
    """

    id: int
    parent: int | None  # None: the tree began here
    token: int
    position: int  # counted from the prompt's first token
    logprob: float  # nats; chance that it is right if its parent is, as the drafter that knows most sees it
    path_logprob: float  # nats; sum over its path since the tree's last server-made tip
    children: dict[int, int] = field(default_factory=dict)  # token -> node id
    evaluated: bool = False
    busy: bool = False
    choice: int | None = None
    wire_id: int = 0  # its number on the current stream; 0 = not sent (on the verifier: not the edge's)
    committed: bool = False  # it is, or was, the tip


class Dead(Enum):
    """A dead node can no longer become text."""

    DEAD = "dead"


DEAD = Dead.DEAD


@dataclass(frozen=True, slots=True)
class Committed:
    """The place lies on the committed path."""

    position: int


Place = Node | Committed | Dead
"""Where a node went on arrival: into the tree (from then on it lives, is committed or dies), or folded onto
the committed path, or nowhere."""


@dataclass(slots=True)
class TreeCounts:
    """The counts say where every node went: grown = accepted + pruned + live. An arrival may also fold,
    merge or be late."""

    grown: int = 0  # nodes attached below the tip
    accepted: int = 0  # of those, became the tip
    pruned: int = 0  # of those, died when the tip moved elsewhere
    folded: int = 0  # arrived late and agreed with the committed text
    late: int = 0  # arrived late and disagreed, or below a dead parent
    merged: int = 0  # arrived as a second child with the same token


class SpeculationTree:
    """The tree holds committed tokens and the live nodes below them.

    Args: committed, the token ids known so far (the prompt, on a reconnect also the text); at least one.
    Raises `LocalError` on misuse, `PeerError` where a place named by the peer cannot be.
    """

    def __init__(self, committed: Sequence[int]) -> None:
        if not committed:
            raise LocalError("a tree needs at least one committed token")
        self.committed: list[int] = list(committed)
        self.counts = TreeCounts()
        self._next_id = 1
        self.live: dict[int, Node] = {}  # by id, the oldest first: the tip, then parents before children
        self.tip = self._make_tip(self.committed[-1], len(self.committed) - 1)

    @property
    def tip_position(self) -> int:
        return len(self.committed) - 1

    @property
    def num_speculative(self) -> int:
        """Return the number of live nodes below the tip."""
        return len(self.live) - 1

    def grow(self, parent: Node, token: int, logprob: float) -> Node:
        """Attach `token` below a live node and return the child. An existing child with the token is returned
        instead, with the better log-probability, since two drafters may find the same node."""
        if parent.id not in self.live:
            raise LocalError(f"node {parent.id} is not live and cannot get a child")
        existing = parent.children.get(token)
        if existing is not None:
            self.counts.merged += 1
            return self._promise(self.live[existing], logprob)
        path_logprob = parent.path_logprob + logprob
        new = self._next_id
        self._next_id += 1
        node = Node(new, parent.id, token, parent.position + 1, logprob, path_logprob)
        parent.children[token] = new
        self.live[new] = node
        self.counts.grown += 1
        return node

    def attach(self, parent: Place, token: int, logprob: float) -> Place:
        """Place an arriving node below its live parent, on the committed path, or nowhere.

        Below a committed parent the node is folded if it agrees with the committed token there.
        """
        if isinstance(parent, Node):
            if parent.id in self.live:
                return self.grow(parent, token, logprob)
            if parent.committed:
                return self._fold(parent.position, token, logprob)
        elif isinstance(parent, Committed):
            return self._fold(parent.position, token, logprob)
        self.counts.late += 1
        return DEAD

    def advance(self, token: int) -> Sequence[Node]:
        """Commit `token` after the tip and return the nodes that died. The tip's child with the token becomes
        the tip, or a new node does."""
        old = self.tip
        child = old.children.get(token)
        self.committed.append(token)
        del self.live[old.id]
        if child is None:
            dead = self._kill_all() if self.live else ()
            self.tip = self._make_tip(token, old.position + 1)
            return dead
        self.tip = self.live[child]
        self.tip.committed = True
        self.counts.accepted += 1
        siblings = [other for other in old.children.values() if other != child]
        return self._kill(siblings) if siblings else ()

    def worth(self, node: Node) -> float:
        """Return the log-probability (nats) that the path from the tip to the node is the target's."""
        return node.path_logprob - self.tip.path_logprob

    def speculative(self) -> Iterator[Node]:
        """Yield the live nodes below the tip, parents before children."""
        return islice(self.live.values(), 1, None)  # all but the tip, which is older than what hangs below it

    def revise(self, node: Node, logprob: float) -> None:
        """Set the log-probability of a live node below the tip, and update its descendants.

        Sums are made as in `grow`: a child is never likelier than its parent, not even by rounding.
        """
        node.logprob = logprob
        for below in self.subtree(node):
            assert below.parent is not None, "it hangs below another"
            below.path_logprob = self.live[below.parent].path_logprob + below.logprob

    def likeliest_path(self) -> list[Node]:
        """Return the path from below the tip that takes the likeliest child each time, the oldest of
        equals."""
        path, node = list[Node](), self.tip
        while node.children:
            node = max((self.live[child] for child in node.children.values()), key=lambda each: each.logprob)
            path.append(node)
        return path

    def subtree(self, node: Node) -> Iterator[Node]:
        """Yield the node and everything below it, parents first."""
        stack = [node]
        while stack:
            current = stack.pop()
            yield current
            stack.extend(self.live[child] for child in current.children.values())

    def check_integrity(self) -> None:
        """Raise `LocalError` unless every link, position and count agrees."""
        for node in self.live.values():
            self._check_children(node)
        reached = {node.id for node in self.subtree(self.tip)}
        if next(iter(self.live), None) != self.tip.id:
            raise LocalError(f"the tip {self.tip.id} is not the first of the live nodes")
        if reached != set(self.live):
            raise LocalError(f"nodes {set(self.live) - reached} do not hang below the tip")
        counts, live = self.counts, self.num_speculative
        if counts.grown != counts.accepted + counts.pruned + live:
            raise LocalError(f"{counts.grown} nodes grown, but {counts} and {live} live")
        if self.tip.position != self.tip_position or self.tip.token != self.committed[-1]:
            raise LocalError(f"the tip {self.tip} is not the last of {len(self.committed)} committed tokens")

    def _check_children(self, node: Node) -> None:
        for token, child_id in node.children.items():
            child = self.live.get(child_id)
            if child is None:
                raise LocalError(f"node {child_id} below node {node.id} is not live")
            if (child.parent, child.token, child.position) != (node.id, token, node.position + 1):
                raise LocalError(f"{child} does not fit below {node}")

    def _promise(self, node: Node, logprob: float) -> Node:
        """Raise the log-probability of a node if `logprob` is better."""
        if logprob > node.logprob:
            self.revise(node, logprob)
        return node

    def _fold(self, position: int, token: int, logprob: float) -> Place:
        if position > self.tip_position or position < 0:
            raise PeerError(
                f"a node hangs at position {position}, but the committed text ends at {self.tip_position}",
                Code.OUT_OF_RANGE,
            )
        if position == self.tip_position:
            return self.grow(self.tip, token, logprob)
        if self.committed[position + 1] == token:
            self.counts.folded += 1
            return Committed(position + 1)
        self.counts.late += 1
        return DEAD

    def _kill_all(self) -> tuple[Node, ...]:
        dead = tuple(self.live.values())
        self.live.clear()
        self.counts.pruned += len(dead)
        return dead

    def _kill(self, roots: Iterable[int]) -> tuple[Node, ...]:
        dead = list[Node]()
        for root in roots:
            stack = [root]
            while stack:
                node = self.live.pop(stack.pop())
                dead.append(node)
                stack.extend(node.children.values())
        self.counts.pruned += len(dead)
        return tuple(dead)

    def _make_tip(self, token: int, position: int) -> Node:
        tip = Node(self._next_id, None, token, position, 0.0, 0.0)
        tip.committed = True
        self._next_id += 1
        self.live[tip.id] = tip
        return tip
