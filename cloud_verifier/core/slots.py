"""KV slots by number: who owns which, and nothing else. The engine holds the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloud_verifier.core.target import IntArray
from common.errors import CapacityError, LocalError


class SlotPool:
    """Free slots 0..num_slots-1, handed out lowest-last-freed first, and reservations against them.

    A session reserves its worst case at admission, so that `take` cannot fail later.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_reserved = 0
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def reserve(self, count: int) -> None:
        """Promise `count` slots. Raises `CapacityError` when they are not there."""
        room = self.num_slots - self.num_reserved
        if count > room:
            raise CapacityError(
                f"this session may need {count} KV slots and {room} of {self.num_slots} are unreserved; "
                "ask for fewer max_tokens, try later, or use another verifier"
            )
        self.num_reserved += count

    def release_reservation(self, count: int) -> None:
        self.num_reserved -= count

    def take(self, count: int) -> IntArray:
        """`count` slots as int32 [count]. Raises `LocalError` if reservations were not kept."""
        if count > len(self._free):
            raise LocalError(
                f"{count} slots asked for and {len(self._free)} free: reservations were not kept"
            )
        cut = len(self._free) - count
        taken = self._free[cut:]
        del self._free[cut:]
        return np.array(taken[::-1], dtype=np.int32)

    def give_back(self, slots: Sequence[int] | IntArray) -> None:
        """Free slots that nothing refers to any more."""
        self._free.extend(slots.tolist() if isinstance(slots, np.ndarray) else slots)


class SlotList:
    """The slots of one session's evaluated positions, as an int32 array that grows in place."""

    def __init__(self, capacity: int) -> None:
        self._slots: IntArray = np.empty(max(capacity, 16), dtype=np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> IntArray:
        """int32 [C], read-only: later appends go behind it and never change it."""
        view = self._slots[: self._length]
        view.flags.writeable = False
        return view

    def extend(self, slots: Sequence[int] | IntArray) -> None:
        end = self._length + len(slots)
        if end > len(self._slots):
            grown: IntArray = np.empty(max(end, 2 * len(self._slots)), dtype=np.int32)
            grown[: self._length] = self._slots[: self._length]
            self._slots = grown
        self._slots[self._length : end] = slots
        self._length = end
