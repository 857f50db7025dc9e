"""Keeps the states of recurrent and hybrid draft models: a sequence for every node (see `StateBranches`)."""

from __future__ import annotations

from edge_client.draft.batch_plan import NO_SEQUENCE, NOT_PLANNED, BatchPlan, DraftNode, EngineSurprise
from edge_client.draft.branches import Branches


class StateBranches(Branches):
    """Tracks a session's nodes in a memory that forks whole sequences and never cuts one back.

    A state belongs to one position. So every evaluated node has a sequence of its own, its key in `heads`. A
    child's sequence begins as a copy of its parent's; llama.cpp copies the state when it evaluates the child.
    A batch leaves only a sequence's last state: a child of a row takes over the row's sequence, and the
    parent is evaluated again when another child needs its state.

    Without an idle sequence, the session with the most states loses its oldest. `free` holds at most one
    sequence, with the trunk's state near the prompt's end. A text that cannot go on from the trunk begins
    there, or anew.
    """

    def place(self, node: DraftNode, plan: BatchPlan) -> bool:
        """As `Branches.place`. Return False for a child of the tip in the batch that evaluates the tip."""
        parent = _parent_of(node)
        if parent.row == NOT_PLANNED:
            node.sequence = self._fork(node, plan)
        elif parent.sequence == self.trunk:
            return False
        else:
            node.sequence = self._take_over(parent)
        self.heads[node.sequence] = node
        plan.add(node)
        return True

    def _fork(self, node: DraftNode, plan: BatchPlan) -> int:
        """Return a sequence with the state of the node's parent."""
        parent, idle = _parent_of(node), self._sequences.idle
        if not idle and not self._make_idle(parent) and parent.sequence != self.trunk:
            return self._take_over(parent)
        # Without attention layers, llama.cpp computes rows together only if their sequences are consecutive.
        if plan.sequences and (following := plan.sequences[-1] + 1) in idle:
            idle.remove(following)
            idle.append(following)
        branch = self._sequences.take()
        self._memory.seq_copy(parent.sequence, branch, 0, parent.position + 1)
        return branch

    def _take_over(self, parent: DraftNode) -> int:
        branch, parent.sequence = parent.sequence, NO_SEQUENCE
        del self.heads[branch]
        return branch

    def _make_idle(self, parent: DraftNode) -> bool:
        """Drop a state that no row of the batch has, not `parent`'s. Return False if `take` cannot succeed.

        The kept beginnings of prompts, which `take` gives away, go before a session's last state.
        """
        users = sorted(self._sequences.users, key=lambda user: len(user.heads), reverse=True)
        has_beginnings = any(user.free for user in users)
        for user in users:
            if has_beginnings and len(user.heads) < 2:
                break
            for branch, head in user.heads.items():
                if head.row == NOT_PLANNED and head is not parent:
                    del user.heads[branch]
                    head.sequence = NO_SEQUENCE
                    self._give_back(branch)
                    return True
        return has_beginnings

    def _give_back(self, branch: int) -> None:
        self._memory.seq_remove(branch, 0)  # removing a whole sequence never fails
        self._sequences.idle.append(branch)
        self._sequences.idle.sort(reverse=True)

    def can_extend_trunk(self, held: int, stop: int) -> bool:
        return held == stop > self.trunk_length

    def extend_trunk(self, source: int, stop: int) -> None:
        """Replace the trunk by a copy of `source`, which has `stop` tokens."""
        self._memory.seq_remove(self.trunk, 0)
        self._memory.seq_copy(source, self.trunk, 0, stop)
        self.trunk_length = stop

    def _settle(self) -> None:
        """Give back the sequences of dead and committed nodes."""
        for branch in [branch for branch, node in self.heads.items() if not self._is_held(node)]:
            del self.heads[branch]
            self._give_back(branch)

    def _cut(self, branch: int, start: int) -> None:
        """Raise `EngineSurprise` if a failed batch has moved the state from before `start`."""
        if self._memory.seq_span(branch) != (start - 1, start - 1):
            raise EngineSurprise(f"a failed batch changed the state of sequence {branch}")

    def keep_beginning(self) -> None:
        """Keep a copy of the trunk, if a sequence is idle, in place of an earlier copy."""
        if not self.trunk_length or not (self.free or self._sequences.idle):
            return
        branch = self.free.pop() if self.free else self._sequences.take()
        self._memory.seq_remove(branch, 0)
        self._memory.seq_copy(self.trunk, branch, 0, self.trunk_length)
        self.free.append(branch)
        self.shared_length[branch] = self.trunk_length

    def cut_back(self, length: int) -> bool:
        """End all branches. Take the trunk back to `length` tokens, or to a kept beginning, or to none."""
        self._end_all(self.trunk_length)
        for branch in [branch for branch in self.free if self.shared_length[branch] > length]:
            self.free.remove(branch)
            del self.shared_length[branch]
            self._give_back(branch)
        if self.trunk_length > length:
            self._memory.seq_remove(self.trunk, 0)
            self.trunk_length = 0
            for branch in self.free:
                self.extend_trunk(branch, self.shared_length[branch])
        return True

    def _end_all(self, trunk_length: int) -> None:
        for branch in self.heads:
            self._give_back(branch)
        self.heads.clear()
        for node in self.nodes.values():
            node.sequence, node.row = NO_SEQUENCE, NOT_PLANNED
        self.trunk_length = trunk_length


def _parent_of(node: DraftNode) -> DraftNode:
    assert node.parent is not None, "the tip is planned in the trunk"
    return node.parent
