"""Virtual time: a heap of (when, order, action), as in SimPy's event loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from common.errors import LocalError

Action = Callable[[], None]


class Events:
    """What is yet to happen. Actions at one moment run in the order in which they were planned.

    `now` is in seconds from the world's beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.num_done = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = 0

    def at(self, when: float, action: Action) -> None:
        """Plan an action. Raises `LocalError` for a moment that has passed."""
        if not when >= self.now:
            raise LocalError(f"an event is planned for {when}, and it is {self.now} already")
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, action))

    def after(self, delay: float, action: Action) -> None:
        """Plan an action `delay` seconds from now."""
        self.at(self.now + delay, action)

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen that is planned for `until` or earlier, and what follows from it by then.

        In the end `now` is the moment of the last action, which may lie before `until`.
        """
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heapq.heappop(heap)
            self.num_done += 1
            action()
