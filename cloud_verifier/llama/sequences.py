"""Finds each KV slot of the scheduler in llama.cpp, which names KV by sequence and position.

llama.cpp keeps one pool of cells. A cell belongs to one or several sequences, and a row attends to the cells
of its own sequence. Each slot has one cell at most, so the slots' number bounds the cells. A session's
*trunk* is a sequence with the cells of its prefix. In a step the first branch of its tree extends the trunk.
Every other leaf gets a sequence of its own, which shares the prefix's cells. No data is copied.

There are 256 sequences at most. If none is free, the session that was planned longest ago loses its own. Its
slots are then *lost*: the engine evaluates their tokens again if a later prefix names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.nouns import IntArray, StepItem
from cloud_verifier.engine.packing import IndexArray, path_rows
from common.llama.runtime import SequenceMemory

LOST = -1
"""In place of a sequence: no sequence holds the slot's cell."""


class SlotMemory(SequenceMemory, Protocol):
    """A `SequenceMemory` that can be emptied."""

    def clear(self) -> None: ...


class NoSequenceError(Exception):
    """Raised when sessions of the batch under construction hold all sequences."""


@dataclass(slots=True)
class Seat:
    """Holds a session's sequences."""

    trunk: int
    branches: list[int] = field(default_factory=list)  # of leaves beyond the first; they stay for later steps


@dataclass(frozen=True, slots=True)
class Leaf:
    """Is one path of an item's tree."""

    sequence: int
    rows: list[int]  # from below the prefix down to the leaf


class SlotSequences:
    """Keeps llama.cpp's sequences equal to what the scheduler's slots mean.

    For each item the engine calls `hold` and `lay`, evaluates the batch, and calls `wrote`. It calls `renew`
    for slots before they are written, and `begin_batch` before each batch.
    """

    def __init__(self, memory: SlotMemory, num_sequences: int, num_slots: int, num_positions: int) -> None:
        self._memory = memory
        self._num_sequences = num_sequences
        # Slot + 1 of each sequence and position, 0 for none: zeros take no memory until they are used.
        self._held: IntArray = np.zeros((num_sequences, num_positions), np.int32)
        self._lengths = dict[int, int]()  # of sequences that hold cells: last position in use, plus 1
        self._home: NDArray[np.int16] = np.full(num_slots, LOST, np.int16)  # a sequence that holds the slot
        self._positions: IntArray = np.zeros(num_slots, np.int32)
        self._seats: dict[int, Seat] = {}  # by session, the one that was planned longest ago first
        self._idle = list(range(num_sequences - 1, -1, -1))
        self._busy: set[int] = set()  # sessions of the batch under construction

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def begin_batch(self) -> None:
        """Let the sessions of the batch before give up their sequences, if they must."""
        self._busy.clear()

    def renew(self, slots: IntArray | IndexArray, positions: IntArray | IndexArray) -> None:
        """Remove the cells of these slots, which will be written at `positions`."""
        known = slots[self._home[slots] != LOST]
        if known.size:
            self._forget(known)
        self._positions[slots] = positions

    def _forget(self, slots: IntArray | IndexArray) -> None:
        positions, active = self._positions[slots], list(self._lengths)
        rows, found = (self._held[np.array(active)[:, None], positions] == slots + 1).nonzero()
        held: dict[int, list[int]] = {}  # positions by sequence
        for row, position in zip(rows.tolist(), positions[found].tolist(), strict=True):
            held.setdefault(active[row], []).append(position)
        for sequence, own in held.items():
            for start, stop in _runs(sorted(own)):
                self._memory.seq_remove(sequence, start, stop)
                self._held[sequence, start:stop] = 0
            self._trim(sequence)
        self._home[slots] = LOST

    def hold(self, session: int, prefix: IntArray) -> int:
        """Let a session's trunk hold the cells of `prefix` int32 [C] and no others.

        Returns the number of leading positions whose cells are there, C unless slots are lost. Raises
        `NoSequenceError`.
        """
        seat = self._seats.pop(session, None) or Seat(self._take())
        self._seats[session] = seat
        self._busy.add(session)
        return self._assign(seat.trunk, prefix)

    def trunk(self, session: int) -> int:
        return self._seats[session].trunk

    def lay(self, item: StepItem) -> list[Leaf]:
        """Give each leaf of an item's tree a sequence with its prefix. Raises `NoSequenceError`."""
        seat, parents = self._seats[item.session], item.parents.tolist()
        inner = set(parents)
        ends = [row for row in range(len(parents)) if row not in inner]
        while len(seat.branches) < len(ends) - 1:
            seat.branches.append(self._take())
        sequences = [seat.trunk, *seat.branches]
        leaves = [Leaf(sequences[place], path_rows(parents, row)) for place, row in enumerate(ends)]
        for leaf in leaves[1:]:
            self._assign(leaf.sequence, item.prefix_slots)
        return leaves

    def wrote(self, slots: IntArray, start: int, leaves: Sequence[Leaf]) -> None:
        """Note that the rows of `leaves`, whose slots are `slots` [T], were evaluated from position `start`
        on."""
        for leaf in reversed(leaves):  # the trunk's last, so that it is a shared row's home
            stop = start + len(leaf.rows)
            own = slots if len(leaf.rows) == len(slots) else slots[leaf.rows]  # a chain is all rows in order
            self._held[leaf.sequence, start:stop] = own + 1
            self._lengths[leaf.sequence] = stop
            self._home[own] = leaf.sequence

    def clear(self) -> None:
        """Remove all cells, of all slots."""
        self._memory.clear()
        self._held[list(self._lengths)] = 0
        self._lengths.clear()
        self._home[:] = LOST
        self._seats.clear()
        self._busy.clear()
        self._idle = list(range(self._num_sequences - 1, -1, -1))

    def _assign(self, sequence: int, prefix: IntArray) -> int:
        """Let a sequence hold the cells of `prefix` and no others, up to the first slot that is lost."""
        wanted, held = prefix + 1, self._held[sequence]
        stop, length = len(wanted), self._lengths.get(sequence, 0)
        if length > stop:
            self._drop(sequence, stop, length)
        for begin, end in _runs((held[:stop] != wanted).nonzero()[0].tolist()):
            homes = self._home[prefix[begin:end]]
            cuts = [0, *(np.flatnonzero(np.diff(homes)) + 1).tolist(), end - begin]
            for start, until in pairwise(cuts):
                first, last, home = begin + start, begin + until, int(homes[start])
                length = self._lengths.get(sequence, 0)
                self._drop(sequence, first, last if home != LOST else length)
                if home == LOST:
                    return first
                self._memory.seq_copy(home, sequence, first, last)
                held[first:last] = wanted[first:last]
                self._lengths[sequence] = max(self._lengths.get(sequence, 0), last)
        return stop

    def _drop(self, sequence: int, start: int, stop: int) -> None:
        """Remove a sequence's cells of positions [start, stop). Slots that no other sequence holds are
        lost."""
        held = self._held[sequence, start:stop]
        slots = held[held > 0] - 1
        if not slots.size:
            return
        self._memory.seq_remove(sequence, start, stop)
        held[:] = 0
        self._trim(sequence)
        slots = slots[self._home[slots] == sequence]
        if not slots.size:
            return
        self._home[slots] = LOST
        for other, length in self._lengths.items():
            if length > start:
                self._home[slots[self._held[other, self._positions[slots]] == slots + 1]] = other

    def _trim(self, sequence: int) -> None:
        """Set a sequence's length after its cells were removed."""
        length, held = self._lengths.pop(sequence, 0), self._held[sequence]
        while length and not held[length - 1]:
            length -= 1
        if length:
            self._lengths[sequence] = length

    def _take(self) -> int:
        """Return an empty sequence, of the session that was planned longest ago if none is idle."""
        if self._idle:
            return self._idle.pop()
        others = [(session, seat) for session, seat in self._seats.items() if session not in self._busy]
        for _, seat in others:
            if seat.branches:
                return self._emptied(seat.branches.pop())
        for session, seat in others:
            del self._seats[session]
            return self._emptied(seat.trunk)
        raise NoSequenceError

    def _emptied(self, sequence: int) -> int:
        self._drop(sequence, 0, self._lengths.get(sequence, 0))
        return sequence


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run of consecutive `numbers`, which increase."""
    start = stop = -1
    for number in numbers:
        if number != stop:
            if stop >= 0:
                yield start, stop
            start = number
        stop = number + 1
    if stop >= 0:
        yield start, stop
