"""Admits texts to the device's seats by a bounded queue that is fair between clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor

from common.errors import CapacityError

FIRST_GUESS = 5.0
"""Seconds assumed for a text until the first one has ended."""

MOST_LONG = 2
"""Long texts that are tokenized at the same time. They leave the other threads to short ones."""


class QueuePlace:
    """Holds one text's place. `async with` waits for its seat and gives it back; `release` drops it unused.

    A place is taken before a response begins, so the response's status can say that the queue is full.
    """

    def __init__(self, admission: Admission, client: str, turn: asyncio.Future[None]) -> None:
        self._admission, self._client, self._turn = admission, client, turn
        self._began: float | None = None
        self._is_released = False

    async def __aenter__(self) -> None:
        try:
            await self._turn
        except asyncio.CancelledError:
            self.release()
            raise
        self._began = asyncio.get_running_loop().time()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the place back, once."""
        if not self._is_released:
            self._is_released = True
            now = asyncio.get_running_loop().time()
            took = None if self._began is None else now - self._began
            self._admission.release(self._client, self._turn, took)


class Admission:
    """Admits at most `seats` texts at once and `max_waiting` behind them, in one event loop.

    Clients take turns, in the order of their arrival. A client with a hundred requests delays another
    client's first request by one text, not by a hundred.
    """

    def __init__(self, seats: int, max_waiting: int) -> None:
        self.seats = seats
        self.max_waiting = max_waiting
        self.num_active = 0
        self.num_refused = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client
        self._usual_time = FIRST_GUESS  # seconds of a text, smoothed
        self.long_texts = ThreadPoolExecutor(MOST_LONG, "long-texts")  # tokenizes them

    @property
    def num_waiting(self) -> int:
        return sum(len(each) for each in self._waiting.values())

    @property
    def retry_after(self) -> float:
        """Estimate the seconds until a place in the queue is free."""
        return max(1.0, self._usual_time / self.seats)

    def place(self, client: str, *, had_one: bool = False) -> QueuePlace:
        """Return a seat or a place in the queue. Raises `CapacityError` if both are full, unless the text
        `had_one` before the daemon's restart."""
        if not had_one and self.num_active >= self.seats and self.num_waiting >= self.max_waiting:
            self.num_refused += 1
            raise CapacityError(
                f"{self.num_active} texts are being written and {self.num_waiting} wait, the limit of "
                f"this device; try again in {self.retry_after:.0f} s",
                retry_after=self.retry_after,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.num_active < self.seats:
            self.num_active += 1
            turn.set_result(None)
        else:
            self._waiting.setdefault(client, deque()).append(turn)
        return QueuePlace(self, client, turn)

    def places(self, client: str, count: int) -> list[QueuePlace]:
        """Return `count` places. Raises `CapacityError`, and takes none, if there are fewer."""
        with contextlib.ExitStack() as undo:
            places = list[QueuePlace]()
            for _ in range(count):
                places.append(self.place(client))
                undo.callback(places[-1].release)
            undo.pop_all()
        return places

    def release(self, client: str, turn: asyncio.Future[None], took: float | None) -> None:
        """Take a place back after `took` seconds of use; None if its seat wrote no text."""
        if took is not None:
            self._usual_time += (took - self._usual_time) / 8
        if turn.done() and not turn.cancelled():
            self._leave()
        else:
            self._forget(client, turn)

    def _leave(self) -> None:
        """Hand the seat to the next waiting client, if any."""
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
        if turn in (turns := self._waiting.get(client, deque())):
            turns.remove(turn)
            if not turns:
                del self._waiting[client]
