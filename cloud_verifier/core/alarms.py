"""Hold one alarm a key, the earliest first."""

from __future__ import annotations

import heapq
import math

SLACK = 64
"""Cancelled alarms in the heap, beyond the number of live ones, that trigger a clean-up."""


class Alarms:
    """Holds absolute times (seconds) by key. Setting a key again moves its alarm. The old alarm is removed
    lazily, but early enough that short streams with far deadlines do not fill the memory."""

    def __init__(self) -> None:
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def set(self, key: int, at: float | None) -> None:
        """Set the alarm of `key` to this time; None or infinity removes it."""
        if at is None or at == math.inf:
            self._due.pop(key, None)
        elif self._due.get(key) != at:
            self._due[key] = at
            if len(self._heap) >= 2 * len(self._due) + SLACK:
                self._heap = [(due_at, each) for each, due_at in self._due.items()]
                heapq.heapify(self._heap)
            else:
                heapq.heappush(self._heap, (at, key))

    def __len__(self) -> int:
        """Return the number of alarms in memory, cancelled ones included."""
        return len(self._heap)

    @property
    def next_at(self) -> float | None:
        """The time of the first alarm; None for never."""
        self._forget()
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[int]:
        """Remove and return the keys whose time has come, the earliest first."""
        rung = list[int]()
        while (at := self.next_at) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            rung.append(key)
        return rung

    def _forget(self) -> None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
