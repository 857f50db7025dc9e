"""Finds each KV slot of the scheduler in llama.cpp, which names KV by sequence and position.

llama.cpp keeps one pool of cells. A cell belongs to one or several sequences, and a row attends to the cells
of its own sequence. Each slot has one cell at most, so the slots' number bounds the cells. A session's
*trunk* is a sequence with the cells of its prefix. In a step the first branch of its tree extends the trunk.
Every other leaf gets a sequence of its own, which shares the prefix's cells. No data is copied.

There are 256 sequences at most. If none is free, the session that was planned longest ago loses its own. Its
slots are then *lost*: the engine evaluates their tokens again if a later prefix names them.

**Cells lie in the order of positions.** Attention adds up a row's cells in their order, so another order
gives other bits. llama.cpp puts a row into the lowest free cell. If there is never a free cell among occupied
ones, that is the cell above all others, and so above those of the tokens before it. So a cell that no slot
needs any more is kept occupied: it stays in a sequence of its own, the *graveyard*. When the graveyard has
grown, or two cached prefixes were joined in the wrong order, `compact` moves the living cells down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import IntArray, StepItem
from cloud_verifier.engine.packing import IndexArray, path_rows
from common.errors import LocalError
from common.llama.runtime import TO_THE_END, ByteArray

LOST = -1
"""In place of a sequence: no sequence holds the slot's cell."""


class SlotMemory(Protocol):
    """Keeps the KV cells of sequences, as `LlamaRuntime` does.

    With a sliding `window` (0: none) only those cells of a sequence are copied out that its next row would
    see, also where all are kept.
    """

    window: int

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None: ...
    def seq_remove(self, sequence: int, start: int, stop: int = TO_THE_END) -> bool: ...
    def seq_state(self, sequence: int) -> ByteArray: ...
    def seq_restore(self, sequence: int, state: ByteArray) -> bool: ...
    def clear(self) -> None: ...


RESERVED = 2
"""Sequences that no session gets: the graveyard, and the carrier of cells that are moved."""

MOST_DEAD, FEW_DEAD = 0.5, 512
"""Dead cells that are kept: a share of the living ones, and so many beside. A row's attention passes over
each, which takes a tenth of the time of a cell that it sees."""


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

    For each item the engine calls `hold` and `lay`, then `make_room` once, evaluates the batch, calls
    `placed` for each decode and `wrote` for each item. It calls `renew` for slots before they are written,
    and `begin_batch` before each batch.

    Args: memory; num_sequences of it; num_slots; num_positions, the longest text; num_cells, more than
    `num_slots`.
    """

    def __init__(
        self, memory: SlotMemory, num_sequences: int, num_slots: int, num_positions: int, num_cells: int
    ) -> None:
        self._memory = memory
        self._num_sequences = num_sequences - RESERVED
        self.carrier, self._grave = num_sequences - 2, num_sequences - 1
        self._num_cells = num_cells
        self._cells: IntArray = np.zeros(num_slots, np.int32)  # by slot, where it has a home
        self._top = 0  # cells below it are occupied, those from it on are free
        self._disordered = False  # a prefix has a cell below that of an earlier position
        self.num_moved = 0  # cells, by `compact`
        # Slot + 1 of each sequence and position, 0 for none: zeros take no memory until they are used.
        self._held: IntArray = np.zeros((self._num_sequences, num_positions), np.int32)
        self._lengths = dict[int, int]()  # of sequences that hold cells: last position in use, plus 1
        self._home: NDArray[np.int16] = np.full(num_slots, LOST, np.int16)  # a sequence that holds the slot
        self._positions: IntArray = np.zeros(num_slots, np.int32)
        self._seats: dict[int, Seat] = {}  # by session, the one that was planned longest ago first
        self._idle = list(range(self._num_sequences - 1, -1, -1))
        self._busy: set[int] = set()  # sessions of the batch under construction

    def begin_batch(self) -> None:
        """Let the sessions of the batch before give up their sequences, if they must."""
        self._busy.clear()

    def renew(self, slots: IntArray | IndexArray, positions: IntArray | IndexArray) -> None:
        """Give up the cells of these slots, which will be written at `positions`."""
        written = slots[self._home[slots] != LOST]
        if written.size:
            self._forget(written)
        self._positions[slots] = positions

    def _forget(self, slots: IntArray | IndexArray) -> None:
        positions, active = self._positions[slots], list(self._lengths)
        rows, columns = (self._held[np.array(active)[:, None], positions] == slots + 1).nonzero()
        held: dict[int, list[int]] = {}  # positions by sequence
        for row, position in zip(rows.tolist(), positions[columns].tolist(), strict=True):
            held.setdefault(active[row], []).append(position)
        for sequence, own in held.items():
            for start, stop in _runs(sorted(own)):
                self._bury(sequence, start, stop)
                self._held[sequence, start:stop] = 0
            self._trim(sequence)
        self._home[slots] = LOST

    def _bury(self, sequence: int, start: int, stop: int) -> None:
        """Take the cells of positions [start, stop) from a sequence. They stay occupied until `compact`."""
        self._memory.seq_copy(sequence, self._grave, start, stop)
        self._memory.seq_remove(sequence, start, stop)

    def hold(self, session: int, prefix: IntArray) -> int:
        """Let a session's trunk hold the cells of `prefix` int32 [C] and no others.

        Returns the number of leading positions whose cells are there, C unless slots are lost. Raises
        `NoSequenceError`.
        """
        seat = self._seats.pop(session, None) or Seat(self._take())
        self._seats[session] = seat
        self._busy.add(session)
        return self._assign(seat.trunk, prefix)

    def make_room(self, num_rows: int) -> None:
        """Make sure that the next `num_rows` rows get cells above all that they see."""
        if self._top + num_rows <= self._num_cells and not self._disordered:
            if self._top <= FEW_DEAD:
                return
            living = int(np.count_nonzero(self._home != LOST))
            if self._top <= FEW_DEAD + (1 + MOST_DEAD) * living:
                return
        self.compact()

    def placed(self, slots: IntArray | IndexArray) -> None:
        """Note that a decode has written the rows of `slots`, in this order."""
        self._cells[slots] = np.arange(self._top, self._top + len(slots), dtype=np.int32)
        self._top += len(slots)

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
        for unused in seat.branches[len(ends) - 1 :]:  # what they hold beyond the prefix is dead
            self._drop(unused, len(item.prefix_slots), self._lengths.get(unused, 0))
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
        self._top, self._disordered = 0, False
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
        changed = (held[:stop] != wanted).nonzero()[0].tolist()
        if changed and np.count_nonzero(np.diff(self._cells[prefix[max(0, changed[0] - 1) :]]) <= 0):
            self._disordered = True
        for begin, end in _runs(changed):
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
        self._bury(sequence, start, stop)
        held[:] = 0
        self._trim(sequence)
        slots = slots[self._home[slots] == sequence]
        if not slots.size:
            return
        self._home[slots] = LOST
        for other, length in self._lengths.items():
            if length > start:
                self._home[slots[self._held[other, self._positions[slots]] == slots + 1]] = other

    def compact(self) -> None:
        """Move the living cells down to where no dead one is among them, each above those before it in its
        texts.

        Cells that lie right already stay. The others are copied out and in, by runs of one sequence. Raises
        `LocalError` if llama.cpp refuses to take a run back; then all KV is lost.
        """
        order = self._in_order()
        stay = int(np.argmin(np.append(self._cells[order] == np.arange(len(order)), False)))
        moved, memory = order[stay:], self._memory
        homes, positions = self._home[moved], self._positions[moved]
        ends = (np.diff(homes) != 0) | (np.diff(positions) != 1)
        if memory.window:  # no cell of a run may lie outside the window of the run's last one
            ends |= np.diff(positions // max(1, memory.window // 2)) != 0
        runs = list[tuple[IntArray, int, ByteArray]]()
        for slots in np.split(moved, np.flatnonzero(ends) + 1) if len(moved) else ():
            first, home = int(self._positions[slots[0]]), int(self._home[slots[0]])
            memory.seq_copy(home, self.carrier, first, first + len(slots))
            runs.append((slots, first, memory.seq_state(self.carrier)))
            memory.seq_remove(self.carrier, first, first + len(slots))
        is_moved = np.zeros(len(self._cells) + 1, np.bool_)
        is_moved[moved + 1] = True
        for sequence, length in self._lengths.items():
            leaving = is_moved[self._held[sequence, :length]]
            if (first := int(np.argmax(leaving))) or (length and leaving[0]):
                memory.seq_remove(sequence, first, length)
        memory.seq_remove(self._grave, 0, TO_THE_END)
        self._top, self._disordered = stay, False
        for slots, first, state in runs:
            if not memory.seq_restore(self.carrier, state):
                self.clear()
                raise LocalError("llama.cpp does not take back the KV cells that it has given out")
            stop = first + len(slots)
            for sequence, length in self._lengths.items():
                own = self._held[sequence, first : min(stop, length)]
                for start, until in _runs((own == slots[: len(own)] + 1).nonzero()[0].tolist()):
                    memory.seq_copy(self.carrier, sequence, first + start, first + until)
            memory.seq_remove(self.carrier, first, stop)
            self.placed(slots)
        self.num_moved += len(moved)

    def _in_order(self) -> IntArray:
        """Return all slots that have a cell, each after those before it in its texts, texts in one piece as
        far as possible."""
        texts = [held[held > 0] - 1 for held in (self._held[s, :n] for s, n in self._lengths.items())]
        if not texts:
            return np.zeros(0, np.int32)
        size = len(self._cells)
        pairs = np.unique(np.concatenate([text[:-1].astype(np.int64) * size + text[1:] for text in texts]))
        before, after = pairs // size, pairs % size
        waiting = np.bincount(after, minlength=size).tolist()
        starts = np.searchsorted(before, np.arange(size + 1)).tolist()
        after = after.tolist()
        living = np.unique(np.concatenate(texts))
        cell = self._cells.__getitem__
        ready = sorted((slot for slot in living.tolist() if not waiting[slot]), key=cell, reverse=True)
        order = list[int]()
        while ready:
            slot = ready.pop()
            order.append(slot)
            freed = list[int]()
            for next_slot in after[starts[slot] : starts[slot + 1]]:
                waiting[next_slot] -= 1
                if not waiting[next_slot]:
                    freed.append(next_slot)
            ready += sorted(freed, key=cell, reverse=True) if len(freed) > 1 else freed
        return np.array(order, np.int32)

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
