"""When something is due: one alarm a key, the earliest first."""

from __future__ import annotations

import heapq

SLACK = 64
"""Forgotten alarms that may lie about beside as many as there are; with more of them all are thrown out."""


class Alarms:
    """Absolute times (seconds) by key. Setting a key again moves its alarm; the old one is forgotten
    lazily, but not so lazily that streams that come and go, with deadlines of years, fill the memory."""

    def __init__(self) -> None:
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def set(self, key: int, at: float | None) -> None:
        """Ring for `key` at this time; None for never."""
        if at is None:
            self._due.pop(key, None)
        elif self._due.get(key) != at:
            self._due[key] = at
            if len(self._heap) >= 2 * len(self._due) + SLACK:
                self._heap = [(due_at, each) for each, due_at in self._due.items()]
                heapq.heapify(self._heap)
            else:
                heapq.heappush(self._heap, (at, key))

    def __len__(self) -> int:
        """Alarms that take memory, forgotten ones included."""
        return len(self._heap)

    @property
    def next_at(self) -> float | None:
        """When the first is due; None for never."""
        self._forget()
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[int]:
        """The keys whose time has come, the earliest first; each rings once."""
        rung = list[int]()
        while (at := self.next_at) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            rung.append(key)
        return rung

    def _forget(self) -> None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
