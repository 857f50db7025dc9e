"""Which sequences hold a session's tree: our bookkeeping, and the calls that keep llama.cpp's equal to it.

The *trunk*, a sequence that is the session's own, holds the committed text. A node that the draft evaluated
has its KV in at least one *branch*, a sequence that runs from the first token down to its *head*. A head is a
node without an evaluated child, so branches and leaves correspond one to one: a head's child extends its
branch, any other child forks a new one. A fork shares cells, nothing is copied.

Copying a long prefix costs one ordered-set insertion per cell inside llama.cpp. So a branch that ends
keeps the trunk's cells, and the next fork adds only what the trunk has grown by since.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.errors import LocalError
from edge_client.llama.plan import NO_SEQUENCE, NOT_PLANNED, BatchPlan, DraftNode, Surprise
from edge_client.llama.sequences import SequenceMemory, Sequences


class Branches:
    """A session's live nodes and their sequences: its `trunk`, and branches drawn from the context's."""

    def __init__(self, memory: SequenceMemory, sequences: Sequences, trunk: int) -> None:
        self._memory = memory
        self._sequences = sequences
        self.trunk = trunk
        self.trunk_length = 0  # cells of the trunk
        self.nodes: dict[int, DraftNode] = {}  # below the tip, parents first
        self.heads: dict[int, DraftNode] = {}  # branch -> its head
        self.free: list[int] = []  # branches that ended; the last is taken first
        self.shared_length: dict[int, int] = {}  # leading cells that a branch surely shares with the trunk
        sequences.join(self)

    @property
    def branches(self) -> list[int]:
        """All that it has, live and free."""
        return [*self.heads, *self.free]

    @property
    def num_free(self) -> int:
        """Branches that are only kept for the next fork."""
        return len(self.free)

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
        branch = self.free.pop() if self.free else self._sequences.take()
        source, stop = self.trunk, self.trunk_length
        for above in node.path():
            if above is node:
                continue
            if above.row == NOT_PLANNED:
                source, stop = above.sequence, above.position + 1
                break
            plan.shared.setdefault(above.row, []).append(branch)
            if above.parent is None:  # the tip, behind the committed tokens that are evaluated with it
                for row in range(plan.first, above.row):
                    plan.shared.setdefault(row, []).append(branch)
        start = self.shared_length.get(branch, 0)
        if start < stop:
            self._memory.seq_copy(source, branch, start, stop)
            start = min(stop, self.trunk_length)
        self.shared_length[branch] = start
        return branch

    def retract(self, nodes: Iterable[DraftNode | None]) -> None:
        """Take back what `place` did for nodes whose batch was not evaluated.

        Raises `Surprise` if llama.cpp refuses to remove what may be there of them.
        """
        for node in nodes:
            if node is not None:
                node.sequence, node.row = NO_SEQUENCE, NOT_PLANNED
        self._cut(self.trunk, self.trunk_length)
        self._settle()

    def give_up(self) -> int:
        """Part with the branch that was free for longest; the caller removes its cells."""
        branch = self.free.pop(0)
        del self.shared_length[branch]
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
            self._memory.seq_copy(last.sequence, self.trunk, self.trunk_length, last.position + 1)
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
        self._settle()

    def _settle(self) -> None:
        """Every branch ends at an evaluated live node, or is free."""
        covered: set[int] = set()
        ended = [
            (branch, head) for branch, head in self.heads.items() if not self._keep(branch, head, covered)
        ]
        for branch, head in ended:
            self._shorten(branch, head, covered)

    def _keep(self, branch: int, head: DraftNode, covered: set[int]) -> bool:
        """Whether the branch goes on as it is. Its nodes are then `covered`, and say so."""
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
        """End a branch at its lowest evaluated live node if no other branch holds that one, else free it."""
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
            raise Surprise(f"llama.cpp cannot remove the end of sequence {branch}")

    def _is_alive(self, node: DraftNode | None) -> bool:
        return node is not None and self.nodes.get(node.id) is node

    def _is_held(self, node: DraftNode) -> bool:
        return node.sequence != NO_SEQUENCE and self.nodes.get(node.id) is node

    # --- starting over ----------------------------------------------------------------------------------

    def cut_back(self, length: int) -> bool:
        """Branches end, the trunk is this short, nodes lose their KV. False: llama.cpp refused."""
        longer = [
            branch for branch, kept in self.shared_length.items() if kept > length or branch in self.heads
        ]
        self._end_all(length)
        self.shared_length = {branch: min(kept, length) for branch, kept in self.shared_length.items()}
        return all(self._memory.seq_remove(sequence, length) for sequence in (self.trunk, *longer))

    def clear(self) -> None:
        """Nothing is held any more, and other sessions may have the branches."""
        self._end_all(0)
        for sequence in (self.trunk, *self.free):
            self._memory.seq_remove(sequence, 0)  # of whole sequences it never fails
        self._sequences.idle += reversed(self.free)
        self.free.clear()
        self.shared_length.clear()

    def _end_all(self, trunk_length: int) -> None:
        for branch in self.heads:  # a live branch holds the whole trunk, also where its count lags behind
            self.shared_length[branch] = self.trunk_length
        self.free += sorted(self.heads, reverse=True)
        self.heads.clear()
        for node in self.nodes.values():
            node.sequence, node.row = NO_SEQUENCE, NOT_PLANNED
        self.trunk_length = trunk_length

    # --- law 3 ------------------------------------------------------------------------------------------

    def check_integrity(self, tip: DraftNode) -> None:
        """Nothing leaks and nothing is missing. Raises `LocalError` that says what is wrong."""
        _hold(set(self.shared_length) == {*self.free, *self.heads}, "a branch has cells that nobody counts")
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
