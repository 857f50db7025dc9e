"""KV slots by number: which are free, and which hold a session's positions. The engine holds the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloud_verifier.core.target import IntArray
from common.errors import LocalError


class SlotPool:
    """Free slots 0..num_slots-1, handed out lowest-last-freed first. `KvMemory` says who may take them."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_slots(self) -> Sequence[int]:
        """Those that nobody owns, in no order."""
        return tuple(self._free)

    def take(self, count: int) -> list[int]:
        """`count` slots. Raises `LocalError` if there are not so many."""
        if count > len(self._free):
            raise LocalError(
                f"{count} slots asked for and {len(self._free)} free: reservations were not kept"
            )
        if count == 1:
            return [self._free.pop()]
        cut = len(self._free) - count
        taken = self._free[cut:]
        del self._free[cut:]
        taken.reverse()
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        """Free slots that nothing refers to any more."""
        self._free.extend(slots)


class SlotList:
    """The slots of one session's evaluated positions, as an int32 array that grows in place."""

    def __init__(self, capacity: int) -> None:
        self._length = 0
        self._hold(np.empty(max(capacity, 16), dtype=np.int32))

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> IntArray:
        """int32 [C], read-only: later appends go behind it and never change it."""
        return self._shown[: self._length]

    def extend(self, slots: Sequence[int] | IntArray) -> None:
        end = self._length + len(slots)
        if end > len(self._slots):
            grown: IntArray = np.empty(max(end, 2 * len(self._slots)), dtype=np.int32)
            grown[: self._length] = self._slots[: self._length]
            self._hold(grown)
        if len(slots) == 1:
            self._slots[self._length] = slots[0]
        else:
            self._slots[self._length : end] = slots
        self._length = end

    def view_with(self, slots: Sequence[int]) -> IntArray:
        """As `view` will be when these are appended, which they must be next."""
        length = self._length
        self.extend(slots)
        self._length = length
        return self._shown[: length + len(slots)]

    def replace(self, slots: IntArray) -> None:
        """Other slots for the same positions, int32 [C]. Views handed out before keep the old ones."""
        self._hold(np.concatenate((slots, self._slots[self._length :])))

    def _hold(self, slots: IntArray) -> None:
        self._slots = slots
        self._shown = slots.view()
        self._shown.flags.writeable = False
