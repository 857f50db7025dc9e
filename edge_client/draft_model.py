"""The draft model of a daemon: loaded when a text first needs it, put away when none has for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from common.errors import ForerunError
from common.grammar.trial import in_thread
from edge_client.draft_pool import DraftPool, Seat
from edge_client.llama.model import LlamaModel
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.settings import LlamaSettings
from edge_client.llama.trial import Trials

logger = logging.getLogger(__name__)

CLOSE_PATIENCE = 30.0
"""Seconds that a turn under way may take to end: a batch of a prompt on a slow processor, and then some."""


class ModelState(Enum):
    """Where the weights are. The tokens are always there."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(slots=True)
class KeepAlive:
    """When a model that nobody uses is put away. Times in seconds, of any clock."""

    seconds: float = 300.0  # after the last use; below 0: never, 0: at once
    put_away_at: float | None = None  # None: it is in use, or stays
    is_unwanted: bool = False  # it was to be put away while it was in use

    def on_used(self) -> None:
        """Somebody took a seat."""
        self.put_away_at, self.is_unwanted = None, False

    def on_unwanted(self) -> None:
        """It shall go as soon as nobody uses it."""
        self.is_unwanted = True

    def on_idle(self, now: float) -> None:
        """Nobody has a seat any more, or it was loaded for nobody."""
        seconds = 0.0 if self.is_unwanted else self.seconds
        self.put_away_at = now + seconds if seconds >= 0 else None


class DraftModel:
    """A draft model and its seats, used from one event loop. Ends with `close`.

    The constructor reads the tokens, which stay: `tokens` has the vocabulary, whatever the state. It raises
    `UserError` if the file is none. `keep_alive` seconds after the last seat was given back the weights are
    put away (below 0: never; 0: at once). `clock` tells the time of day, in seconds since 1970. With `trials`
    the file is loaded by another process before this one touches it, its tokens here and its weights when
    they are wanted; without, a file that llama.cpp dies of ends this process.
    """

    def __init__(
        self,
        settings: LlamaSettings,
        seats: int = 8,
        keep_alive: float = 300.0,
        clock: Callable[[], float] = time.time,
        trials: Trials | None = None,
    ) -> None:
        self._trials = trials
        if trials is not None:
            trials.ensure(settings, weights=False)
        self.tokens = LlamaModel(settings, weights=False)
        self.size_bytes = Path(self.tokens.path).stat().st_size  # of the file
        self.state = ModelState.UNLOADED
        self.failure = ""  # why it could not be loaded, as a sentence
        self.loaded_at: float | None = None  # seconds since 1970
        self.num_seats = seats
        self._settings = settings
        self._clock = clock
        self._keep = KeepAlive(keep_alive)
        self._num_waiting = 0  # callers of `acquire` that have no seat yet
        self._pool: DraftPool | None = None
        self._runtime: LlamaRuntime | None = None
        self._change = asyncio.Lock()  # one loading or putting away at a time
        self._loading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Task[None] | None = None  # a putting away that the timer began

    # --- use --------------------------------------------------------------------------------------------

    async def acquire(self, prompt: Sequence[int] = ()) -> Seat:
        """A seat for a generation on these token ids; loads the model if it is away. Release it at the end.

        Raises the `UserError` of loading, to all who waited for it, and the next call tries again;
        `CapacityError` if all seats are taken.
        """
        self._num_waiting += 1
        try:
            while self._pool is None:  # it may be put away again before this task goes on
                await self.load()
            seat = self._pool.seat(prompt)
            self._keep.on_used()
            self._set_timer()
            return seat
        finally:
            self._num_waiting -= 1
            self._on_release()

    async def prepare(self, grammar: str) -> None:
        """Read the tokens for grammars beside the loop, once, so that no draft step waits for it. Raises
        `UserError` for a grammar that cannot be drafted under."""
        await in_thread(lambda: self.tokens.grammars.check(grammar))

    async def load(self) -> None:
        """Load it if it is away, in a thread; who comes meanwhile waits for the same. Raises `UserError`."""
        if self._pool is not None:
            return
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
            self._loading.add_done_callback(self._on_load_ended)
        await asyncio.shield(self._loading)  # others may wait for it when this caller is cancelled

    async def unload(self, force: bool = False) -> bool:
        """Put it away. False: it is in use, and goes when the last seat is given back.

        With `force` the seats' draft steps fail with `UnavailableError`; their texts go on without drafts.
        """
        if self.num_used and not force:
            self._keep.on_unwanted()
            return False
        async with self._change:
            await self._put_away()
        return True

    async def close(self) -> None:
        """Put everything away, the tokens too."""
        await self.unload(force=True)
        self.tokens.close()

    async def ping(self, patience: float) -> bool:
        """Whether nothing hangs: nothing is loaded, or the drafter's turn ends within `patience` seconds."""
        return self._pool is None or await self._pool.ping(patience)

    # --- what a monitor reads ---------------------------------------------------------------------------

    @property
    def num_used(self) -> int:
        """Seats that are taken."""
        return 0 if self._pool is None else self._pool.num_seats - self._pool.num_free

    @property
    def beats(self) -> int:
        """Turns of the drafter's thread since it was loaded."""
        return 0 if self._pool is None else self._pool.beats

    @property
    def seconds_left(self) -> float | None:
        """Until it is put away; None if it is in use, stays, or is away."""
        at = self._keep.put_away_at
        return None if self._pool is None or at is None else max(0.0, at - asyncio.get_running_loop().time())

    @property
    def keep_alive(self) -> float:
        """Seconds; see the class. May be set at any time."""
        return self._keep.seconds

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        self._keep.seconds = seconds
        self._on_release()

    # --- loading ----------------------------------------------------------------------------------------

    async def _load(self) -> None:
        async with self._change:
            self.state, self.failure = ModelState.LOADING, ""
            logger.info("> loading the draft model %s", self.tokens.path)
            try:
                self._runtime, pool = await asyncio.to_thread(self._open)
            except ForerunError as error:
                self._on_load_failed(str(error))
                raise
            except BaseException:
                self._on_load_failed("loading the draft model was broken off; ask again")
                raise
            pool.start()
            self._pool = pool
            self.state, self.loaded_at = ModelState.LOADED, self._clock()
            self._on_release()

    def _on_load_failed(self, reason: str) -> None:
        self.state, self.failure = ModelState.FAILED, reason
        logger.warning("x %s", reason)

    def _open(self) -> tuple[LlamaRuntime, DraftPool]:
        if self._trials is not None:
            self._trials.ensure(self._settings, weights=True)
        runtime = LlamaRuntime(self._settings)
        runtime.grammars = self.tokens.grammars  # the same tokens, and what is compiled outlives the weights
        try:
            return runtime, DraftPool(runtime, self.num_seats, self._on_release)
        except ForerunError:
            runtime.close()
            raise

    def _on_load_ended(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled():
            task.exception()  # told to those who wait; if nobody does, `failure` tells it

    # --- putting away -----------------------------------------------------------------------------------

    async def _put_away(self) -> None:
        pool, runtime = self._pool, self._runtime
        if pool is None or runtime is None:
            return
        self._pool = self._runtime = None
        self.state, self.loaded_at = ModelState.UNLOADED, None
        self._keep.on_used()
        self._set_timer()
        if await pool.close(CLOSE_PATIENCE):
            await asyncio.to_thread(runtime.close)
            logger.info("< the draft model is put away")
        else:  # to free what its thread still reads would end the process
            logger.error("! llama.cpp hangs in the draft model; its memory is lost until this process ends")

    def _on_release(self) -> None:
        """If nobody has a seat or waits for one, the time to put it away begins."""
        if self._pool is not None and not self.num_used and not self._num_waiting:
            self._keep.on_idle(asyncio.get_running_loop().time())
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keep.put_away_at is not None:
            self._timer = asyncio.get_running_loop().call_at(self._keep.put_away_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        async with self._change:
            if self._keep.put_away_at is not None and not self._num_waiting:  # nobody has come since
                await self._put_away()
