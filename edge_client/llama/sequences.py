"""Which session of a context has which llama.cpp sequence for a branch.

There are 256 at most, and a lone session's tree may want nearly all of them, so none is anybody's own. A
branch that ends stays with its session, because it holds cells of that session's trunk and the next fork
there is cheap; it is emptied and given away as soon as another session has none left.
"""

from __future__ import annotations

from typing import Protocol

from common.errors import LocalError
from edge_client.llama.plan import Surprise


class SequenceMemory(Protocol):
    """What llama.cpp's memory does (`LlamaRuntime`)."""

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None: ...
    def seq_remove(self, sequence: int, start: int) -> bool: ...


class SequenceUser(Protocol):
    """A session's share of the sequences (`Branches`)."""

    @property
    def branches(self) -> list[int]:
        """All that it has, live and free."""
        ...

    @property
    def num_free(self) -> int:
        """How many of them it only keeps."""
        ...

    def give_up(self) -> int:
        """Part with a free branch, whose cells the caller removes; there is one."""
        ...


class Sequences:
    """The branch sequences [first, stop) of a context. Those before `first` are trunks, one a session."""

    def __init__(self, memory: SequenceMemory, first: int, stop: int) -> None:
        self.first = first
        self.idle = list(range(stop - 1, first - 1, -1))  # hold no cells; the last is taken first
        self._stop = stop
        self._memory = memory
        self._users: list[SequenceUser] = []

    @property
    def count(self) -> int:
        return self._stop - self.first

    def join(self, user: SequenceUser) -> None:
        """Let `user` draw from these, and give up what it does not need."""
        self._users.append(user)

    def take(self) -> int:
        """An empty sequence: an idle one, else one that a session only keeps for its next fork.

        Raises `Surprise` if all hold live branches.
        """
        if self.idle:
            return self.idle.pop()
        holder = max(self._users, key=lambda user: user.num_free)
        if not holder.num_free:
            raise Surprise(f"all {self.count} branch sequences are taken", full=True)
        branch = holder.give_up()
        self._memory.seq_remove(branch, 0)  # of a whole sequence it never fails
        return branch

    def check_integrity(self) -> None:
        """Law 3: every sequence is idle, free or live, once. Raises `LocalError`."""
        held = [branch for user in self._users for branch in user.branches]
        branches = sorted([*self.idle, *held])
        if branches != list(range(self.first, self._stop)):
            raise LocalError(f"draft tree: sequences leak: {branches} of {self.first}..{self._stop - 1}")
