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
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.llama.runtime import LlamaRuntime
from edge_client.core.effects import (
    NOTHING_READ,
    Drafted,
    Expand,
    MoveTip,
    Outcome,
    ReadingTime,
    StartDrafter,
)
from edge_client.draft.cascade import CascadeGroup
from edge_client.draft.group import DraftGroup, MemberAnswer
from edge_client.draft.llama_session import num_equal

logger = logging.getLogger(__name__)


Task = Callable[[], None]
"""A function that the loop posts and the thread calls between two turns."""

Wish = StartDrafter | MoveTip | Expand | None
"""A seat's request; None: the seat is released."""


@dataclass(slots=True, eq=False)
class DraftPlace:
    """The loop's side of a place in the group."""

    index: int
    seat: PoolSeat | None = None  # None: it is free
    text: list[int] = field(default_factory=list)  # of its latest session, as far as known


class PoolSeat:
    """A generation's place in a pool, until `release`: its `Drafts`. Called from the loop's thread."""

    def __init__(self, pool: DraftPool, place: DraftPlace) -> None:
        self._pool = pool
        self._place = place
        self._waiting: deque[Drafted] = deque()  # requested draft steps, in order
        self._is_released = False

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        """Carry the request out before later ones. Raise `LocalError` after `release`."""
        match effect:
            case StartDrafter():
                self._place.text = list(effect.tokens)
            case MoveTip():
                self._place.text += [token for _, token in effect.change.committed]
        self._post(effect)

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        """Run a draft step. The loop calls `on_drafted` later, unless the seat was released. Raise
        `LocalError` after `release`."""
        self._waiting.append(on_drafted)
        self._post(effect, self._on_drafted)
        if self._pool.is_closing:
            asyncio.get_running_loop().call_soon(self._on_drafted, put_away(), NOTHING_READ)

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` need no new evaluation."""
        return self._pool.num_kept(tokens)

    def release(self) -> None:
        """Release the seat; its text is kept for a similar one. A second call does nothing."""
        if not self._is_released:
            self._post(None)
            self._is_released = True
            self._waiting.clear()
            self._pool.take_back(self._place)

    def end(self, error: ForerunError) -> None:
        """Drop all callbacks: the pool answers no more requests of this seat."""
        while self._waiting:
            self._on_drafted(error, NOTHING_READ)

    def _on_drafted(self, outcome: Outcome, reading: ReadingTime) -> None:
        if self._waiting:
            self._waiting.popleft()(outcome, reading)

    def _post(self, wish: Wish, on_drafted: Drafted | None = None) -> None:
        if self._is_released:
            raise LocalError("a generation drafts after it released its seat")
        self._pool.post(partial(self._pool.queue, self._place.index, wish, on_drafted))


class DraftPool:
    """Owns the thread, from `start` (or `async with`) to `close`; the runtime stays the caller's. Raises
    `UserError` if the context has too few sequences for `num_seats`."""

    def __init__(
        self,
        runtime: LlamaRuntime,
        seats: int = 8,
        on_release: Callable[[], None] = lambda: None,
        batch_times: Mapping[int, float] | None = None,
        small: LlamaRuntime | None = None,
    ) -> None:
        """Call `on_release` whenever a seat is released. `batch_times`: measured seconds of a batch by its
        tokens; None: learnt online. `small`: a smaller draft in front (`CascadeGroup`)."""
        self._on_release = on_release
        self._group = DraftGroup(runtime, seats) if small is None else CascadeGroup(runtime, seats, small)
        if batch_times is not None:
            self._group.measured(batch_times)
        self._places = tuple(DraftPlace(index) for index in range(seats))
        self._inbox: SimpleQueue[Sequence[Task] | None] = SimpleQueue()  # of the thread
        self._held_back: list[Task] | None = None  # while steps that ended together are handed out
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closing = False
        self._queues = tuple(deque[tuple[Wish, Drafted | None]]() for _ in range(seats))  # of the thread
        self._under_way: dict[int, Drafted] = {}  # of the thread: place -> of its draft step
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
        for place in self._places:
            if place.seat is not None:
                place.seat.end(put_away())
        return not self._thread.is_alive()

    async def __aenter__(self) -> DraftPool:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def num_free(self) -> int:
        """The number of free seats."""
        return sum(place.seat is None for place in self._places)

    @property
    def num_seats(self) -> int:
        return len(self._places)

    def seat(self, prompt: Sequence[int] = ()) -> PoolSeat:
        """Return the seat that keeps most of `prompt`, for a text that begins with it. Raise `CapacityError`
        if none is free."""
        free = [place for place in self._places if place.seat is None]
        if not free:
            raise CapacityError(
                f"all {self.num_seats} seats of the draft model are taken; try again when a text has ended, "
                "or raise draft.seats"
            )
        place = max(free, key=lambda place: self._num_held(place, prompt))
        place.seat = PoolSeat(self, place)
        return place.seat

    def _num_held(self, place: DraftPlace, tokens: Sequence[int]) -> int:
        # The thread may park the text at any time, which costs little.
        held = self._group.members[place.index].session.num_held
        return num_equal(place.text[:held], tokens)

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` some text has evaluated: all seats may share them."""
        held = (self._num_held(place, tokens) for place in self._places)
        return max(self._group.num_kept(tokens), *held)

    def take_back(self, place: DraftPlace) -> None:
        """Mark the seat of a `PoolSeat` as free."""
        place.seat = None
        self._on_release()

    def post(self, task: Task) -> None:
        """Post a task of a `PoolSeat` to the thread."""
        if self._held_back is None:
            self._inbox.put((task,))
        else:
            self._held_back.append(task)

    async def ping(self, patience: float) -> bool:
        """Return whether the thread ends its turn within `patience` seconds."""
        answer = asyncio.Event()
        self.post(lambda: self._call(answer.set))
        try:
            async with asyncio.timeout(patience):
                await answer.wait()
        except TimeoutError:
            return False
        return True

    def _hand_out(self, ended: Sequence[tuple[Drafted, Outcome, ReadingTime]]) -> None:
        """Resume the callers of all these draft steps, and post their next requests together."""
        loop = asyncio.get_running_loop()
        if self._held_back is None:
            self._held_back = []
        for on_drafted, outcome, reading in ended:
            loop.call_soon(on_drafted, outcome, reading)
        loop.call_soon(self._post_held_back)

    def _post_held_back(self) -> None:
        tasks, self._held_back = self._held_back, None
        if tasks:
            self._inbox.put(tasks)

    # --- the thread's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._receive():
            for index in range(self.num_seats):
                self._carry_out(index)
            self._hand_back(self._turn())

    def _receive(self) -> bool:
        """Sort posted requests to the places; wait for one if idle. Return False at the end."""
        wait = not any(self._can_go_on(index) for index in range(self.num_seats))
        while True:
            pause = self._group.pause if wait else 0.0
            try:
                tasks = self._inbox.get(block=pause != 0.0, timeout=pause)
            except Empty:
                return True
            if tasks is None:
                return False
            wait = False
            for task in tasks:
                task()

    def queue(self, index: int, wish: Wish, on_drafted: Drafted | None) -> None:
        """Queue a request of a `PoolSeat`. The loop calls the `on_drafted` of an `Expand`."""
        queue = self._queues[index]
        if wish is None:  # its earlier requests are void
            queue.clear()
            self._under_way.pop(index, None)
        queue.append((wish, on_drafted))

    def _can_go_on(self, index: int) -> bool:
        return bool(self._queues[index]) and index not in self._under_way

    def _carry_out(self, index: int) -> None:
        """Carry out a seat's requests in order, up to a draft step, which ends before later ones."""
        while self._can_go_on(index):
            wish, on_drafted = self._queues[index].popleft()
            if on_drafted is not None:
                self._under_way[index] = on_drafted
            try:
                match wish:
                    case StartDrafter():
                        self._group.begin(index, wish)
                    case MoveTip():
                        self._group.reroot(index, wish.change)
                    case Expand():
                        self._group.ask(index, wish.rows)
                    case None:
                        self._group.release(index)
            except Exception as error:  # outermost frame of a seat's request: only its drafting ends
                logger.exception("! the drafter failed")
                self._group.fail(index, LocalError(f"the drafter failed: {error}"))

    def _turn(self) -> list[MemberAnswer]:
        try:
            return self._group.turn()
        except Exception as error:  # outermost frame of a turn: drafting ends, no text does
            logger.exception("! the drafter failed")
            for index in range(self.num_seats):
                self._group.fail(index, LocalError(f"the drafter failed: {error}"))
            return self._group.turn()

    def _hand_back(self, answers: Sequence[MemberAnswer]) -> None:
        """Hand back, in the loop, all draft steps that ended together."""
        ended = [(self._under_way.pop(each.member), each.outcome, each.reading) for each in answers]
        if len(ended) == 1:
            self._call(*ended[0])
        elif ended:
            self._call(self._hand_out, ended)

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
