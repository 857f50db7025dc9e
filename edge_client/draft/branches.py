"""Tracks the sequences that hold a session's tree, and keeps llama.cpp's memory equal to it.

The *trunk*, a sequence that is the session's own, holds the committed text. A node that the draft evaluated
has its KV in at least one *branch*, a sequence that runs from the first token down to its *head*. A head is a
node without an evaluated child, so branches and leaves correspond one to one: a head's child extends its
branch, any other child forks a new one. A fork shares cells, nothing is copied.

Copying a long prefix costs one ordered-set insertion per cell inside llama.cpp. So a branch that ends
keeps the trunk's cells, and the next fork adds only what the trunk has grown by since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from common.llama.runtime import LlamaRuntime
from edge_client.draft.batch_plan import NO_SEQUENCE, NOT_PLANNED, BatchPlan, DraftNode, EngineSurprise


class Sequences:
    """Manages the branch sequences [first, stop) of a context. Sequences before `first` are trunks.

    There are 256 at most, and a lone session's tree may need nearly all of them, so no session owns any. A
    branch that ends stays with its session. It holds cells of that session's trunk, so the next fork is
    cheap. It is emptied and given away as soon as another session has none left.
    """

    def __init__(self, memory: LlamaRuntime, first: int, stop: int) -> None:
        self.first = first
        self.idle = list(range(stop - 1, first - 1, -1))  # hold no cells; the last is taken first
        self._stop = stop
        self._memory = memory
        self.users: list[Branches] = []  # all users of these sequences

    @property
    def count(self) -> int:
        return self._stop - self.first

    def take(self) -> int:
        """Return an empty sequence. Raises `EngineSurprise` if all hold live branches."""
        if self.idle:
            return self.idle.pop()
        holder = max(self.users, key=lambda user: len(user.free))
        if not holder.free:
            raise EngineSurprise(f"all {self.count} branch sequences are taken", full=True)
        branch = holder.free.pop(0)  # free for the longest time
        del holder.shared_length[branch]
        self._memory.seq_remove(branch, 0)  # removing a whole sequence never fails
        return branch


class Branches:
    """Tracks a session's live nodes and their sequences: its `trunk` and branches of the context.

    All but `cut_back` and `clear` raise `EngineSurprise` if llama.cpp refuses or no sequence is free.
    """

    def __init__(self, memory: LlamaRuntime, sequences: Sequences, trunk: int) -> None:
        self._memory = memory
        self._sequences = sequences
        self.trunk = trunk
        self.trunk_length = 0  # cells of the trunk
        self.nodes: dict[int, DraftNode] = {}  # below the tip, parents first
        self.heads: dict[int, DraftNode] = {}  # branch -> its head
        self.free: list[int] = []  # branches that ended; the last is taken first
        self.shared_length: dict[int, int] = {}  # leading cells that a branch shares with the trunk at least
        sequences.users.append(self)

    def adopt(self, node_id: int, parent: DraftNode, token: int) -> DraftNode | None:
        """Give a foreseen node with this parent and token the id `node_id`. Return None without one."""
        held = [node for node in self.nodes.values() if node.id < 0]
        node = next((each for each in held if each.parent is parent and each.token == token), None)
        if node is not None:
            self.nodes = {node_id if each is node else key: each for key, each in self.nodes.items()}
            node.id = node_id
            if node.expansion is not None:
                node.expansion = replace(node.expansion, id=node_id)
        return node

    def place(self, node: DraftNode, plan: BatchPlan) -> bool:
        """Give a node, whose parent has its KV or an earlier row, a sequence and a row of the batch.

        Return False if it must wait for a later batch.
        """
        parent = node.parent
        if parent is not None and self.heads.get(parent.sequence) is parent:
            node.sequence = parent.sequence
        else:
            node.sequence = self._fork(node, plan)
        self.heads[node.sequence] = node
        plan.add(node)
        return True

    def _fork(self, node: DraftNode, plan: BatchPlan) -> int:
        """Return a new branch with all of the node's ancestors, also those of the batch."""
        branch = self.free.pop() if self.free else self._sequences.take()
        source, stop = self.trunk, self.trunk_length
        for above in node.path():
            if above is node:
                continue
            if above.row == NOT_PLANNED:
                source, stop = above.sequence, above.position + 1
                break
            plan.shared.setdefault(above.row, []).append(branch)
            if above.parent is None:  # the tip, after the committed tokens of the same batch
                for row in range(plan.first, above.row):
                    plan.shared.setdefault(row, []).append(branch)
        start = self.shared_length.get(branch, 0)
        if start < stop:
            self._memory.seq_copy(source, branch, start, stop)
            start = min(stop, self.trunk_length)
        self.shared_length[branch] = start
        return branch

    def retract(self, nodes: Iterable[DraftNode | None]) -> None:
        """Undo `place` for nodes whose batch was not evaluated."""
        for node in nodes:
            if node is not None:
                node.sequence, node.row = NO_SEQUENCE, NOT_PLANNED
        self._cut(self.trunk, self.trunk_length)
        self._settle()

    def commit(self, ids: Iterable[int]) -> DraftNode | None:
        """Move committed nodes' KV to the trunk. Return the last id's node, if there is one."""
        last: DraftNode | None = None
        node: DraftNode | None = None
        for node_id in ids:
            node = self.nodes.pop(node_id, None)
            if node is not None and node.sequence != NO_SEQUENCE:
                last = node
        if last is not None:
            self.extend_trunk(last.sequence, last.position + 1)
        return node

    def can_extend_trunk(self, held: int, stop: int) -> bool:
        """Tell whether the first `stop` of another sequence's `held` tokens would make the trunk longer."""
        return stop > self.trunk_length

    def extend_trunk(self, source: int, stop: int) -> None:
        """Give the trunk the KV of the sequence `source` up to `stop`."""
        self._memory.seq_copy(source, self.trunk, self.trunk_length, stop)
        self.trunk_length = stop

    def keep_beginning(self) -> None:
        """Prepare to cut back to the present trunk. A trunk of KV cells needs nothing."""

    def prune(self, dead: Iterable[int], tip: DraftNode) -> None:
        """Forget dead nodes and all nodes not below `tip`. Free their sequences."""
        for node_id in dead:
            self.nodes.pop(node_id, None)
        for node in list(self.nodes.values()):
            if node.parent is not tip and not self._is_alive(node.parent):
                del self.nodes[node.id]
        self._settle()

    def _settle(self) -> None:
        """End every branch at an evaluated live node, or free it."""
        covered: set[int] = set()
        for branch, head in [item for item in self.heads.items() if not self._keep(*item, covered)]:
            self._shorten(branch, head, covered)

    def _keep(self, branch: int, head: DraftNode, covered: set[int]) -> bool:
        """Tell whether the branch stays as it is. If so, add its nodes to `covered`."""
        if not self._is_held(head):
            return False
        self.shared_length[branch] = self.trunk_length
        for node in head.path():
            if node.parent is None or node.id in covered:
                break
            covered.add(node.id)
            node.sequence = branch
        return True

    def _shorten(self, branch: int, head: DraftNode, covered: set[int]) -> None:
        """End a branch at its lowest evaluated live node. Free it if another branch holds that node."""
        lowest = next((node for node in head.path() if self._is_held(node)), None)
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
            raise EngineSurprise(f"llama.cpp cannot remove the end of sequence {branch}")

    def _is_alive(self, node: DraftNode | None) -> bool:
        return node is not None and self.nodes.get(node.id) is node

    def _is_held(self, node: DraftNode) -> bool:
        return node.sequence != NO_SEQUENCE and self._is_alive(node)

    def cut_back(self, length: int) -> bool:
        """End all branches and cut the trunk to `length`. Return False if llama.cpp refuses."""
        longer = [
            branch for branch, kept in self.shared_length.items() if kept > length or branch in self.heads
        ]
        self._end_all(length)
        self.shared_length = {branch: min(kept, length) for branch, kept in self.shared_length.items()}
        return all(self._memory.seq_remove(sequence, length) for sequence in (self.trunk, *longer))

    def clear(self) -> None:
        """Empty the trunk and give all branches back."""
        self._end_all(0)
        for sequence in (self.trunk, *self.free):
            self._memory.seq_remove(sequence, 0)  # removing whole sequences never fails
        self._sequences.idle += reversed(self.free)
        self.free.clear()
        self.shared_length.clear()

    def _end_all(self, trunk_length: int) -> None:
        for branch in self.heads:  # a live branch holds the whole trunk, even if its count lags behind
            self.shared_length[branch] = self.trunk_length
        self.free += sorted(self.heads, reverse=True)
        self.heads.clear()
        for node in self.nodes.values():
            node.sequence, node.row = NO_SEQUENCE, NOT_PLANNED
        self.trunk_length = trunk_length
