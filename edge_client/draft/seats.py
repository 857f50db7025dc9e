"""Runs the drafter's thread for several generations at once: each has a seat, and all share one context.

The thread alone touches llama.cpp. Each turn takes all requests posted by the event loop, for all seats, and
evaluates them in one llama_decode (`DraftGroup`). Draft steps that end together are handed back together, and
the next requests of their generations are posted together. Otherwise batches of one and of all but one would
alternate.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.llama.runtime import LlamaRuntime
from edge_client.core.effects import (
    NOTHING_READ,
    Drafted,
    DraftEffect,
    Expand,
    MoveTip,
    StartDrafter,
)
from edge_client.draft.group import DraftGroup, MemberAnswer

logger = logging.getLogger(__name__)

GroupMaker = Callable[[LlamaRuntime, int], DraftGroup]

Wish = DraftEffect | None
"""A seat's request; None: the seat is released."""

Request = tuple["PoolSeat", Wish] | asyncio.Event
"""What the loop posts to the thread. An event is set when the turn under way has ended."""


class PoolSeat:
    """A generation's place in a pool, until `release`: its `Drafts`. Called from the loop's thread."""

    def __init__(self, pool: DraftPool, place: int) -> None:
        self.place = place
        self.is_released = False
        self._pool = pool
        self.waiting: deque[Drafted] = deque()  # requested draft steps, in order

    def submit(self, effect: DraftEffect, on_drafted: Drafted) -> None:
        """Carry the request out before later ones. After a draft step the loop calls `on_drafted`, unless the
        seat was released. Raise `LocalError` after `release`."""
        self._pool.post((self, effect))
        if isinstance(effect, Expand):
            self.waiting.append(on_drafted)
            if self._pool.is_closing:
                asyncio.get_running_loop().call_soon(self.end, put_away())

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` need no new evaluation."""
        return self._pool.num_kept(tokens)

    def release(self) -> None:
        """Release the seat; its text is kept for a similar one. A second call does nothing."""
        if not self.is_released:
            self._pool.post((self, None))
            self.is_released = True
            self.waiting.clear()
            self._pool.on_release()

    def end(self, error: ForerunError) -> None:
        """Answer all draft steps with `error`, because the pool answers none any more."""
        while self.waiting:
            self.waiting.popleft()(error, NOTHING_READ)


class Turns:
    """Lets pools compute one after the other, in the order in which they ask. A context manager.

    A `threading.Lock` may pass over a waiting thread again and again.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._num_asked = self._num_ended = 0
        self.groups: list[DraftGroup] = []  # of the pools that take turns

    def __enter__(self) -> None:
        with self._change:
            number, self._num_asked = self._num_asked, self._num_asked + 1
            self._change.wait_for(lambda: self._num_ended == number)

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._num_ended += 1
            self._change.notify_all()


class DraftPool:
    """Owns the thread, from `start` (or `async with`) to `close`; the runtime stays the caller's. Raises
    `UserError` if the context has too few sequences for `num_seats`."""

    def __init__(
        self,
        runtime: LlamaRuntime,
        seats: int = 8,
        on_release: Callable[[], None] = lambda: None,
        batch_times: Mapping[int, float] | None = None,
        group: GroupMaker = DraftGroup,
        turns: Turns | None = None,
    ) -> None:
        """Call `on_release` whenever a seat is released. `batch_times`: measured seconds of a batch by its
        tokens; None: learnt online. `group` makes the group of a runtime and so many seats. `turns`: held in
        each turn, so that pools which share it do not compute at once."""
        self.on_release = on_release
        self.num_seats = seats
        self.is_closing = False
        self._turns = turns or Turns()
        self._group = group(runtime, seats)
        self._turns.groups.append(self._group)
        self._group.beside = self._turns.groups
        self.levels = self._group.levels
        if batch_times is not None:
            self._group.measured(batch_times)
        self._latest: list[PoolSeat | None] = [None] * seats  # by place: who has it, or had it last
        self._inbox: SimpleQueue[Sequence[Request] | None] = SimpleQueue()  # of the thread
        self._held_back: list[Request] | None = None  # while steps that ended together are answered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues = tuple(deque[tuple[PoolSeat, Wish]]() for _ in range(seats))  # of the thread
        self._drafting: dict[int, PoolSeat] = {}  # of the thread: by place, whose draft step is under way
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)

    # --- the loop's side --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, in the event loop that takes the seats; seats may be taken before."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self, patience: float | None = None) -> bool:
        """End the thread after the turn under way; draft steps not reached fail.

        Return False if it has not ended within `patience` seconds: its runtime must stay open then.
        """
        self.is_closing = True
        self._inbox.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, patience)
        if self._group in self._turns.groups:  # the first of several calls
            self._turns.groups.remove(self._group)
        for seat in self._latest:
            if seat is not None:
                seat.end(put_away())
        return not self._thread.is_alive()

    async def __aenter__(self) -> DraftPool:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def num_free(self) -> int:
        return sum(seat is None or seat.is_released for seat in self._latest)

    def seat(self, prompt: Sequence[int] = ()) -> PoolSeat:
        """Return the seat that keeps most of `prompt`, for a text that begins with it. Raise `CapacityError`
        if none is free."""
        free = [place for place, seat in enumerate(self._latest) if seat is None or seat.is_released]
        if not free:
            raise CapacityError(
                f"all {self.num_seats} seats of the draft model are taken; try again when a text has ended, "
                "or raise draft.seats"
            )
        place = max(free, key=lambda place: self._group.num_common(place, prompt))
        seat = self._latest[place] = PoolSeat(self, place)
        return seat

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` some text has evaluated: all seats may share them."""
        return self._group.num_kept(tokens)

    def post(self, request: Request) -> None:
        """Post a request to the thread. Raise `LocalError` if its seat was released."""
        if not isinstance(request, asyncio.Event) and request[0].is_released:
            raise LocalError("a generation drafts after it released its seat")
        if self._held_back is None:
            self._inbox.put((request,))
        else:
            self._held_back.append(request)

    async def ping(self, patience: float) -> bool:
        """Return whether the thread ends its turn within `patience` seconds."""
        answer = asyncio.Event()
        self.post(answer)
        try:
            async with asyncio.timeout(patience):
                await answer.wait()
        except TimeoutError:
            return False
        return True

    def _answer(self, ended: Sequence[tuple[PoolSeat, MemberAnswer]]) -> None:
        """Answer all these draft steps, then post the next requests of their generations together."""
        self._held_back = []
        try:
            for seat, answer in ended:
                if seat.waiting:
                    seat.waiting.popleft()(answer.outcome, answer.reading)
        finally:
            requests, self._held_back = self._held_back, None
            if requests:
                self._inbox.put(requests)

    # --- the thread's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._receive():
            for place in self._next_places():
                self._carry_out(place)
            try:
                with self._turns:
                    answers = self._group.turn()
            except Exception as error:  # outermost frame of a turn: drafting ends, no text does
                logger.exception("! the drafter failed")
                for place in range(self.num_seats):
                    self._group.fail(place, LocalError(f"the drafter failed: {error}"))
                answers = self._group.turn()
            if answers:
                self._call(self._answer, [(self._drafting.pop(each.member), each) for each in answers])

    def _receive(self) -> bool:
        """Queue posted requests by place; wait for one if idle. Return False at the end."""
        wait = not self._next_places()
        while True:
            pause = self._group.pause if wait else 0.0
            try:
                requests = self._inbox.get(block=pause != 0.0, timeout=pause)
            except Empty:
                return True
            if requests is None:
                return False
            wait = False
            for request in requests:
                if isinstance(request, asyncio.Event):
                    self._call(request.set)
                    continue
                seat, wish = request
                if wish is None:  # its earlier requests are void
                    self._queues[seat.place].clear()
                    self._drafting.pop(seat.place, None)
                self._queues[seat.place].append(request)

    def _next_places(self) -> list[int]:
        """Return the seats whose next request need not wait for the end of a draft step."""
        return [at for at, queue in enumerate(self._queues) if queue and at not in self._drafting]

    def _carry_out(self, place: int) -> None:
        """Carry out a seat's requests in order, up to a draft step, which ends before later ones."""
        queue = self._queues[place]
        while queue and place not in self._drafting:
            seat, wish = queue.popleft()
            try:
                match wish:
                    case StartDrafter():
                        self._group.begin(place, wish)
                    case MoveTip():
                        self._group.reroot(place, wish.change)
                    case Expand():
                        self._drafting[place] = seat
                        self._group.ask(place, wish.rows)
                    case None:
                        self._group.release(place)
            except Exception as error:  # outermost frame of a seat's request: only its drafting ends
                logger.exception("! the drafter failed")
                self._group.fail(place, LocalError(f"the drafter failed: {error}"))

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call the function in the loop's thread."""
        assert self._loop is not None, "started"
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed meanwhile: no caller waits
            logger.debug("x a draft step ended after its loop")


def put_away() -> UnavailableError:
    """Return the error of a draft step when its pool is closed."""
    return UnavailableError("the draft model was unloaded while a text was drafted; send the request again")
