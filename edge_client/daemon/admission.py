"""Who writes now and who waits: a bounded queue before the device's seats, fair between clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator

from common.errors import CapacityError

FIRST_GUESS = 5.0
"""Seconds that a text is taken to last before one has ended here."""


class Admission:
    """At most `seats` texts at once and `max_waiting` behind them, one event loop.

    A place that becomes free goes to the client whose turn it is, in the order in which clients came to wait:
    one with a hundred requests delays another's first by one text, not by a hundred.
    """

    def __init__(self, seats: int, max_waiting: int) -> None:
        self.seats = seats
        self.max_waiting = max_waiting
        self.num_active = 0
        self.num_refused = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client
        self._usual_time = FIRST_GUESS  # seconds of a text, smoothed

    @property
    def num_waiting(self) -> int:
        return sum(len(each) for each in self._waiting.values())

    @property
    def retry_after(self) -> float:
        """Seconds until a place in the queue should be free."""
        return max(1.0, self._usual_time / self.seats)

    @contextlib.asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Wait for a seat, hold it meanwhile. Raises `CapacityError` at once if the queue is full."""
        await self._enter(client)
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            took = asyncio.get_running_loop().time() - began
            self._usual_time += (took - self._usual_time) / 8
            self._leave()

    def check(self) -> None:
        """Raise `CapacityError` if a request that came now would be refused."""
        if self.num_active >= self.seats and self.num_waiting >= self.max_waiting:
            self.num_refused += 1
            raise CapacityError(
                f"{self.num_active} texts are being written and {self.num_waiting} wait, which is all that "
                f"this device takes; try again in {self.retry_after:.0f} s",
                retry_after=self.retry_after,
            )

    async def _enter(self, client: str) -> None:
        self.check()
        if self.num_active < self.seats:
            self.num_active += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the seat was given in the very same moment
                self._leave()
            else:
                self._forget(client, turn)
            raise

    def _leave(self) -> None:
        """Hand the seat to the next in turn, if one waits."""
        while self._waiting:
            client, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            self._waiting.move_to_end(client)
            if not turns:
                del self._waiting[client]
            if not turn.done():
                turn.set_result(None)
                return
        self.num_active -= 1

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(client)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[client]
