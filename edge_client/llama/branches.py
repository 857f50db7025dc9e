"""Which sequences hold the live tree's KV: our bookkeeping, and the calls that keep llama.cpp's equal to it.

The *trunk* (sequence 0) holds the committed text. A node that the draft evaluated has its KV in at least one
*branch*, a sequence that runs from the first token down to its *head*. A head is a node without an evaluated
child, so branches and leaves correspond one to one: a head's child extends its branch, any other child forks
a new one. A fork shares cells, nothing is copied.

Copying a long prefix costs one ordered-set insertion per cell inside llama.cpp. So a branch that ends
keeps the trunk's cells, and the next fork adds only what the trunk has grown by since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import LocalError
from edge_client.core.drafter import Expansion

TRUNK = 0
NO_SEQUENCE = -1
NOT_PLANNED = -1


class Surprise(Exception):
    """The KV is not what we think it is, or has no room. Answered by a resync; never leaves the drafter."""

    def __init__(self, message: str, full: bool = False) -> None:
        super().__init__(message)
        self.full = full  # for want of room


class SequenceMemory(Protocol):
    """What llama.cpp's memory does (`LlamaRuntime`)."""

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None: ...
    def seq_remove(self, sequence: int, start: int) -> bool: ...


@dataclass(slots=True, eq=False)
class DraftNode:
    """A node the draft was asked about, or the tip."""

    id: int
    parent: DraftNode | None = field(repr=False)  # None: the tip
    token: int
    position: int
    sequence: int = NO_SEQUENCE  # one that holds its KV; NO_SEQUENCE = not evaluated, or lost
    row: int = NOT_PLANNED  # in the batch that is being put together
    expansion: Expansion | None = None

    def path(self) -> Iterator[DraftNode]:
        """The node, then its ancestors up to and with the tip."""
        node: DraftNode | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(slots=True)
class BatchPlan:
    """The rows of the next llama_decode."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # 1: give logits, 0: only its KV is needed
    nodes: list[DraftNode | None] = field(default_factory=list)  # None: a committed token before the tip
    shared: dict[int, list[int]] = field(default_factory=dict)  # row -> sequences beyond its first

    def add(self, node: DraftNode) -> None:
        node.row = len(self.tokens)
        self.add_token(node.token, node.position, node.sequence, node)

    def add_token(self, token: int, position: int, sequence: int, node: DraftNode | None = None) -> None:
        self.tokens.append(token)
        self.positions.append(position)
        self.sequences.append(sequence)
        self.outputs.append(0)
        self.nodes.append(node)


class Branches:
    """The live nodes and their sequences. `num_sequences` counts the trunk."""

    def __init__(self, memory: SequenceMemory, num_sequences: int) -> None:
        self._memory = memory
        self.nodes: dict[int, DraftNode] = {}  # below the tip, parents first
        self.heads: dict[int, DraftNode] = {}  # branch -> its head
        self.free = list(range(num_sequences - 1, TRUNK, -1))  # the last is taken first
        self.shared_length = [0] * num_sequences  # leading cells that a sequence surely shares with the trunk
        self.trunk_length = 0  # cells of the trunk

    # --- growing ----------------------------------------------------------------------------------------

    def place(self, node: DraftNode, plan: BatchPlan) -> None:
        """Give a node a sequence and a row of the batch. Its parent has its KV or an earlier row.

        Raises `Surprise` if no sequence is free.
        """
        parent = node.parent
        if parent is not None and self.heads.get(parent.sequence) is parent:
            node.sequence = parent.sequence
        else:
            node.sequence = self._fork(node, plan)
        self.heads[node.sequence] = node
        plan.add(node)

    def _fork(self, node: DraftNode, plan: BatchPlan) -> int:
        """A new branch that holds all of the node's ancestors, those in the batch included."""
        if not self.free:
            raise Surprise(f"all {len(self.shared_length) - 1} branch sequences are taken", full=True)
        branch = self.free.pop()
        source, stop = TRUNK, self.trunk_length
        for above in node.path():
            if above is node:
                continue
            if above.row == NOT_PLANNED:
                source, stop = above.sequence, above.position + 1
                break
            plan.shared.setdefault(above.row, []).append(branch)
            if above.parent is None:  # the tip, behind the committed tokens that are evaluated with it
                for row in range(above.row):
                    plan.shared.setdefault(row, []).append(branch)
        start = self.shared_length[branch]
        if start < stop:
            self._memory.seq_copy(source, branch, start, stop)
            self.shared_length[branch] = min(stop, self.trunk_length)
        return branch

    # --- pruning ----------------------------------------------------------------------------------------

    def commit(self, ids: Iterable[int]) -> DraftNode | None:
        """Move committed nodes' KV to the trunk; the node of the last id, if the draft was asked about it."""
        last: DraftNode | None = None
        node: DraftNode | None = None
        for node_id in ids:
            node = self.nodes.pop(node_id, None)
            if node is not None and node.sequence != NO_SEQUENCE:
                last = node
        if last is not None:
            self._memory.seq_copy(last.sequence, TRUNK, self.trunk_length, last.position + 1)
            self.trunk_length = last.position + 1
        return node

    def prune(self, dead: Iterable[int], tip: DraftNode) -> None:
        """Forget the dead and whatever does not hang below `tip`; free the sequences that nothing needs.

        Raises `Surprise` if llama.cpp refuses to remove cells.
        """
        for node_id in dead:
            self.nodes.pop(node_id, None)
        for node in list(self.nodes.values()):
            if node.parent is not tip and not self._is_alive(node.parent):
                del self.nodes[node.id]
        covered: set[int] = set()
        ended = [
            (branch, head) for branch, head in self.heads.items() if not self._keep(branch, head, covered)
        ]
        for branch, head in ended:
            self._shorten(branch, head, covered)

    def _keep(self, branch: int, head: DraftNode, covered: set[int]) -> bool:
        """Whether the branch goes on as it is. Its nodes are then `covered`, and say so."""
        if not self._is_alive(head):
            return False
        self.shared_length[branch] = self.trunk_length
        for node in head.path():
            if node.parent is None or node.id in covered:
                break
            covered.add(node.id)
            node.sequence = branch
        return True

    def _shorten(self, branch: int, head: DraftNode, covered: set[int]) -> None:
        """End a branch at its lowest live node if no other branch holds that one, else free it."""
        lowest = next((node for node in head.path() if self._is_alive(node)), None)
        if lowest is None or lowest.id in covered:
            del self.heads[branch]
            self.free.append(branch)
            self._cut(branch, self.shared_length[branch])
        else:
            self.heads[branch] = lowest
            self._cut(branch, lowest.position + 1)
            self._keep(branch, lowest, covered)

    def _cut(self, branch: int, start: int) -> None:
        if not self._memory.seq_remove(branch, start):
            raise Surprise(f"llama.cpp cannot remove the end of sequence {branch}")

    def _is_alive(self, node: DraftNode | None) -> bool:
        return node is not None and self.nodes.get(node.id) is node

    # --- starting over ----------------------------------------------------------------------------------

    def release_all(self, trunk_length: int) -> None:
        """Branches are gone, the trunk is this short, nodes lose their KV. The caller removes the cells."""
        for branch in self.heads:  # a live branch holds the whole trunk, also where its count lags behind
            self.shared_length[branch] = self.trunk_length
        self.free += sorted(self.heads, reverse=True)
        self.heads.clear()
        for node in self.nodes.values():
            node.sequence, node.row = NO_SEQUENCE, NOT_PLANNED
        self.trunk_length = trunk_length
        self.shared_length = [min(length, trunk_length) for length in self.shared_length]

    # --- law 3 ------------------------------------------------------------------------------------------

    def check_integrity(self, tip: DraftNode) -> None:
        """Nothing leaks and nothing is missing. Raises `LocalError` that says what is wrong."""
        branches = sorted([*self.free, *self.heads])
        _hold(branches == list(range(1, len(self.shared_length))), f"sequences leak: {branches} of 1..n")
        _hold(all(self._is_alive(head) for head in self.heads.values()), "a branch ends at a dead node")
        held = {branch: set(map(id, head.path())) for branch, head in self.heads.items()}
        for node in self.nodes.values():
            _hold(node.parent is tip or self._is_alive(node.parent), f"node {node.id} hangs nowhere")
            _hold(node.row == NOT_PLANNED, f"node {node.id} is still in a batch")
            if node.sequence != NO_SEQUENCE:
                _hold(id(node) in held.get(node.sequence, ()), f"node {node.id} is not in {node.sequence}")


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise LocalError(f"draft tree: {message}")
