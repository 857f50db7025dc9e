"""The drafter's thread for several generations at once: each has a seat, and all draft on one context.

The thread alone touches llama.cpp. Each of its turns takes whatever the event loop has posted by then, for
all seats, and evaluates what they wait for in one llama_decode (`DraftGroup`).

Draft steps that end together are handed back together, and what their generations ask for in answer is posted
as one letter. Otherwise the first to ask again would be evaluated alone and find the others one turn behind
forever, in batches of one and of all but one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from edge_client.core.drafter import NOTHING_READ, Reading
from edge_client.core.effects import Expand, MoveTip, StartDrafter
from edge_client.draft_worker import Drafted, Outcome
from edge_client.llama.group import Answer, DraftGroup
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.session import num_equal
from edge_client.seating import Kept, best_place

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What a seat wants done. No effect: the seat is released."""

    place: int
    effect: StartDrafter | MoveTip | Expand | None
    hand_back: HandBack | None = None  # of an Expand


@dataclass(frozen=True, slots=True)
class HandBack:
    """Who waits for a draft step, and in which event loop."""

    loop: asyncio.AbstractEventLoop
    on_drafted: Drafted


Ping = Callable[[], None]
"""Called by the thread between two turns."""


@dataclass(slots=True, eq=False)
class Place:
    """The loop's side of a place in the group."""

    index: int
    seat: Seat | None = None  # None: it is free
    text: list[int] = field(default_factory=list)  # of its latest session, as far as it was told
    released_at: int = 0  # count of releases; the longest free is the first to lose its text


class Seat:
    """A generation's place in a pool, until `release`: its `Drafts`. Called from the loop's thread."""

    def __init__(self, pool: DraftPool, place: Place) -> None:
        self._pool = pool
        self._place = place
        self._waiting: deque[Drafted] = deque()  # draft steps that were asked for, in order
        self._is_released = False

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        """Carry it out before what is asked for later. Raises `LocalError` after `release`."""
        match effect:
            case StartDrafter():
                self._place.text = list(effect.tokens)
            case MoveTip():
                self._place.text += [token for _, token in effect.change.committed]
        self._post(Job(self._place.index, effect))

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        """Run a draft step. `on_drafted` is called later in the event loop's thread, with the expansions or
        the failure; not after `release`. Raises `LocalError` after `release`."""
        loop = asyncio.get_running_loop()
        self._waiting.append(on_drafted)
        self._post(Job(self._place.index, effect, HandBack(loop, self._on_drafted)))
        if self._pool.is_closing:
            loop.call_soon(self._on_drafted, put_away(), NOTHING_READ)

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Leading ones of `tokens` that need not be evaluated again."""
        return self._pool.num_kept(tokens)

    def release(self) -> None:
        """The generation is over; its text is kept for one that begins likewise. Again is allowed."""
        if not self._is_released:
            self._post(Job(self._place.index, None))
            self._is_released = True
            self._waiting.clear()
            self._pool.take_back(self._place)

    def end(self, error: ForerunError) -> None:
        """For the pool: what was asked for here will not be answered."""
        while self._waiting:
            self._on_drafted(error, NOTHING_READ)

    def _on_drafted(self, outcome: Outcome, reading: Reading) -> None:
        if self._waiting:
            self._waiting.popleft()(outcome, reading)

    def _post(self, job: Job) -> None:
        if self._is_released:
            raise LocalError("a generation drafts on after it gave up its seat")
        self._pool.post(job)


class DraftPool:
    """Owns the thread, from `start` (or `async with`) to `close`; the runtime stays the caller's.

    `beats` counts the thread's turns: it stands still while nobody asks for anything, and in a llama_decode
    that hangs; `ping` tells which. Used from one event loop's thread. Raises `UserError` if the context has
    too few sequences for so many seats.
    """

    def __init__(
        self,
        runtime: LlamaRuntime,
        seats: int = 8,
        on_release: Callable[[], None] = lambda: None,
        batch_times: Mapping[int, float] | None = None,
    ) -> None:
        """`on_release` is called whenever a seat is given back. `batch_times`: seconds of a batch by its
        tokens, as measured; None: learnt on the way."""
        self.beats = 0
        self._on_release = on_release
        self._group = DraftGroup(runtime, seats)
        if batch_times is not None:
            self._group.measured(batch_times)
        self._places = tuple(Place(index) for index in range(seats))
        self._num_releases = 0
        self._letters: SimpleQueue[Sequence[Job | Ping] | None] = SimpleQueue()
        self._held_back: list[Job | Ping] | None = (
            None  # while draft steps that ended together are handed out
        )
        self.is_closing = False
        self._queues: tuple[deque[Job], ...] = tuple(deque() for _ in range(seats))  # of the thread
        self._under_way: dict[int, HandBack] = {}  # of the thread: place -> of its draft step
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)

    # --- the loop's side --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; seats may be taken before."""
        self._thread.start()

    async def close(self, patience: float | None = None) -> bool:
        """End the thread after the turn under way; draft steps that it does not come to fail.

        The event loop goes on meanwhile. False: it has not ended within `patience` seconds, so its runtime
        must not be closed.
        """
        self.is_closing = True
        self._letters.put(None)
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
        """Seats that nobody has."""
        return sum(place.seat is None for place in self._places)

    @property
    def num_seats(self) -> int:
        return len(self._places)

    def seat(self, prompt: Sequence[int] = ()) -> Seat:
        """A seat for a generation on these token ids: one that has most of them evaluated already.

        Raises `CapacityError` if all are taken.
        """
        free = [self._kept(place) for place in self._places if place.seat is None]
        if not free:
            raise CapacityError(
                f"all {self.num_seats} seats at the draft model are taken; try again when a text has ended, "
                "or give the draft model more seats"
            )
        place = self._places[best_place(prompt, free)]
        place.seat = Seat(self, place)
        return place.seat

    def _kept(self, place: Place) -> Kept:
        # The thread may take the text's cells for others at any time: then the choice costs a prefill only.
        held = self._group.members[place.index].session.num_held
        return Kept(place.index, place.text[:held], place.released_at)

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Leading ones of `tokens` that some seat has evaluated: any other may share them."""
        held = (self._kept(place).text for place in self._places)
        return max(num_equal(text, tokens) for text in held)

    def take_back(self, place: Place) -> None:
        """For `Seat`: nobody has it any more."""
        self._num_releases += 1
        place.seat, place.released_at = None, self._num_releases
        self._on_release()

    def post(self, letter: Job | Ping) -> None:
        """For `Seat`: leave it to the thread."""
        if self._held_back is None:
            self._letters.put((letter,))
        else:
            self._held_back.append(letter)

    async def ping(self, patience: float) -> bool:
        """Whether the thread comes to the end of its turn within `patience` seconds."""
        loop = asyncio.get_running_loop()
        answer = asyncio.Event()
        self.post(lambda: _call(loop, answer.set))
        try:
            async with asyncio.timeout(patience):
                await answer.wait()
        except TimeoutError:
            return False
        return True

    def _hand_out(self, ended: Sequence[tuple[Drafted, Outcome, Reading]]) -> None:
        """Let the callers of all these draft steps go on, and post together what they ask for next."""
        loop = asyncio.get_running_loop()
        if self._held_back is None:
            self._held_back = []
        for on_drafted, outcome, reading in ended:
            loop.call_soon(on_drafted, outcome, reading)
        loop.call_soon(self._post_held_back)

    def _post_held_back(self) -> None:
        letters, self._held_back = self._held_back, None
        if letters:
            self._letters.put(letters)

    # --- the thread's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._receive():
            for index in range(self.num_seats):
                self._carry_out(index)
            self._hand_back(self._turn())
            self.beats += 1

    def _receive(self) -> bool:
        """Sort what was posted to the places; wait for it if there is nothing else to do. False: the end."""
        wait = not any(self._can_go_on(index) for index in range(self.num_seats))
        while True:
            pause = self._group.pause if wait else 0.0
            try:
                letter = self._letters.get(block=pause != 0.0, timeout=pause)
            except Empty:
                return True
            if letter is None:
                return False
            wait = False
            for each in letter:
                self._sort(each)

    def _sort(self, letter: Job | Ping) -> None:
        if not isinstance(letter, Job):
            letter()
            return
        queue = self._queues[letter.place]
        if letter.effect is None:  # nobody wants what it asked for before
            queue.clear()
            self._under_way.pop(letter.place, None)
        queue.append(letter)

    def _can_go_on(self, index: int) -> bool:
        return bool(self._queues[index]) and index not in self._under_way

    def _carry_out(self, index: int) -> None:
        """A seat's jobs in order, up to a draft step: that ends before what was posted after it."""
        while self._can_go_on(index):
            job = self._queues[index].popleft()
            try:
                self._do(job)
            except (
                Exception
            ) as error:  # outermost frame of what a seat asks for: its drafting ends, no other's
                logger.exception("! the drafter failed")
                self._group.fail(index, LocalError(f"the drafter failed: {error}"))

    def _do(self, job: Job) -> None:
        if job.hand_back is not None:
            self._under_way[job.place] = job.hand_back
        match job.effect:
            case StartDrafter():
                self._group.begin(job.place, job.effect)
            case MoveTip():
                self._group.reroot(job.place, job.effect.change)
            case Expand():
                self._group.ask(job.place, job.effect.rows)
            case None:
                self._group.release(job.place)

    def _turn(self) -> list[Answer]:
        try:
            return self._group.turn()
        except Exception as error:  # outermost frame of a turn: drafting ends, no text does
            logger.exception("! the drafter failed")
            for index in range(self.num_seats):
                self._group.fail(index, LocalError(f"the drafter failed: {error}"))
            return self._group.turn()

    def _hand_back(self, answers: Sequence[Answer]) -> None:
        """In the loops of those who wait; several draft steps at once where they ended at once."""
        ended: dict[asyncio.AbstractEventLoop, list[tuple[Drafted, Outcome, Reading]]] = {}
        for answer in answers:
            step = self._under_way.pop(answer.member)
            ended.setdefault(step.loop, []).append((step.on_drafted, answer.outcome, answer.reading))
        for loop, steps in ended.items():
            if len(steps) == 1:
                _call(loop, *steps[0])
            else:
                _call(loop, self._hand_out, steps)


def put_away() -> UnavailableError:
    """What a draft step comes to when the pool is closed under it."""
    return UnavailableError("the draft model was put away while a text was drafted; ask again")


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """Call it in the loop's thread."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop was closed meanwhile: nobody waits for it
        logger.debug("x a draft step ended after its loop")
