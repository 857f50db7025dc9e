"""Manages the daemon's draft model: loads it when a text needs it and unloads it after an idle time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import CapacityError, ForerunError, LocalError, UserError
from common.grammar.compile_trial import in_thread
from common.llama.files import find_model
from common.llama.library import free_memory
from common.llama.load_trial import ModelTrials
from common.llama.model import LlamaGrammars, LlamaModel, LlamaSettings, SharedWeights
from common.llama.runtime import LlamaRuntime
from common.memory import DRAFT_SHARE, tokens_that_fit
from common.offers import offer
from common.vocabulary import Vocabulary
from edge_client.core.draft_times import DraftTimes
from edge_client.draft.group import DraftGroup
from edge_client.draft.measure_pace import PaceTables, measure_pace
from edge_client.draft.seats import DraftPool, GroupMaker, PoolSeat, Turns

logger = logging.getLogger(__name__)

CLOSE_PATIENCE = 30.0
"""Seconds that a turn under way may take to end: more than a prompt's batch on a slow processor."""


SEAT_TOKENS = 1024
"""Tokens for each seat that an automatic context has at least, as far as memory allows: a chat."""

MEMORY = 2.0
"""Memory that a model needs to be loaded, by the size of its file: as much again for KV cache and buffers."""

PARALLEL = "forerun.parallel.tokens"
"""Key of a parallel draft's metadata: its mask tokens, as in 3,5,7."""

LEAST_CELLS = 512
"""Cells of an automatic context where memory is short. Texts that need more are written without the draft."""


class ModelState(Enum):
    """Names the state of the weights. The tokens are always loaded."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OtherModel:
    """Names a model of the same tokens that drafts together with the draft model."""

    settings: LlamaSettings
    group: str  # of both: `cascade` (it is in front) or `beside`


MakeRoom = Callable[[LlamaSettings, int], Awaitable[None]]


class SharedDraftModel:
    """Owns a draft model and its seats, for one event loop, until `close`. The constructor reads the tokens,
    which stay, and raises `UserError` for an unreadable file.

    The weights are unloaded `keep_alive` seconds after the last release (below 0: never; 0: at once). With
    `trials` another process loads the file first; without, a crash of llama.cpp ends this process.
    `make_room` runs before the weights are loaded, with their settings and bytes. `other` drafts together
    with this model. With an `n_ctx` of 0 the context is chosen at each loading: see `choose_context`. `free`
    returns the free bytes, by the number of layers on accelerators.
    `target` has the target's tokens if they are others, and stays open; then the seats translate.
    """

    def __init__(
        self,
        settings: LlamaSettings,
        seats: int = 8,
        keep_alive: float = 300.0,
        trials: ModelTrials | None = None,
        make_room: MakeRoom | None = None,
        other: OtherModel | None = None,
        free: Callable[[int], int] = free_memory,
        target: LlamaModel | None = None,
        like: SharedDraftModel | None = None,
    ) -> None:
        """Take the tokens and measured times of `like`, another model of the same tokens, if there is one."""
        # Each returns the longest text of a target; 0: unknown.
        self.targets: list[Callable[[], int]] = like.targets if like else []
        self._free = free
        self.pace = DraftTimes()  # of this model, over all its texts
        self._tables: PaceTables | None = like._tables if like else None  # measured when it is first loaded
        self._levels = 1  # for which they were taught
        if self._tables is not None:
            self._tables.teach(self.pace)
        self._trials = trials
        if trials is not None and like is None:
            trials.ensure(settings, weights=False)
        self._like = like
        self._weights: SharedWeights = like._weights if like and settings.adapter else SharedWeights()
        self._turns: Turns = like._turns if like else Turns()
        self.tokens: LlamaModel = like.tokens if like else LlamaModel(settings, weights=False)
        self._grammars: LlamaGrammars = like._grammars if like else (target or self.tokens).grammars
        self._group: GroupMaker = like._group if like else DraftGroup
        if target is not None:
            self._group = _offered("translated")(self.tokens, target).group
        self.path = find_model(settings.path)
        self.size_bytes = Path(self.path).stat().st_size  # of the file
        if other is not None:
            self.size_bytes += Path(find_model(other.settings.path)).stat().st_size
        self.state = ModelState.UNLOADED
        self.failure = ""  # why it could not be loaded, as a sentence
        self.num_seats = seats
        self._settings = settings
        self._make_room = make_room
        self._keep_alive = keep_alive  # seconds
        self._put_away_at: float | None = None  # by the loop's clock; None: it is in use, or stays
        self._num_waiting = 0  # callers of `acquire` that have no seat yet
        self._pool: DraftPool | None = None
        self._other = other
        self._runtimes: list[LlamaRuntime] = []  # this model's, and the other's
        self._change = asyncio.Lock()  # one loading or unloading at a time
        self._loading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Task[None] | None = None  # an unloading that the timer began

    # --- use --------------------------------------------------------------------------------------------

    async def acquire(self, prompt: Sequence[int] = ()) -> PoolSeat:
        """Return a seat for a generation on these token ids; load the model if necessary. The caller releases
        the seat.

        Raise the `UserError` of loading to all waiting callers, and `CapacityError` if all seats are taken.
        """
        self._num_waiting += 1
        try:
            while self._pool is None:  # it may be unloaded again before this task resumes
                await self.load()
            seat = self._pool.seat(prompt)
            self._set_timer(None)
            return seat
        finally:
            self._num_waiting -= 1
            self._on_release()

    async def prepare(self, grammar: str) -> None:
        """Read the tokens for grammars once, in a thread. Raise `UserError` if no draft can follow the
        grammar."""
        await in_thread(lambda: self._grammars.check(grammar))

    async def load(self) -> None:
        """Load the model in a thread if necessary; later callers wait for it, too. Raise `UserError`."""
        if self._pool is not None:
            return
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
            self._loading.add_done_callback(self._on_load_ended)
        await asyncio.shield(self._loading)  # others may wait for it when this caller is cancelled

    async def unload(self) -> None:
        """Unload the weights now unless a text uses them or they stay for ever."""
        if self.seconds_left is not None:
            await self._leave()

    async def close(self) -> None:
        """Unload everything. Draft steps of taken seats fail with `UnavailableError`; their texts continue
        without drafts."""
        async with self._change:
            await self._put_away()
        if self._like is None:
            self.tokens.close()

    def sibling(self, *, path: str = "", adapter: str = "") -> SharedDraftModel:
        """Return another draft model: of the file `path`, or of this one's weights with an adapter. It has
        this one's tokens and grammars. Another process has tried it.

        Raise `UserError` for a file that fails or has other tokens, and `CapacityError` if memory is short.
        """
        settings = replace(self._settings, path=path or self._settings.path, adapter=adapter)
        beside = self.size_bytes - Path(self.path).stat().st_size  # of the model that drafts with it
        needed = MEMORY * (Path(find_model(settings.path)).stat().st_size + beside)
        if adapter and self.state is ModelState.LOADED:  # the weights are there
            needed -= self.size_bytes - beside
        free = self._free(settings.gpu_layers)
        if 0 < free < needed:
            raise CapacityError(
                f"a second draft model needs {needed / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free; end "
                "other programs, or take a smaller draft"
            )
        if self._trials is not None:
            self._trials.ensure(settings, weights=True)
        if path:
            with LlamaModel(settings, weights=False) as other:
                self._check_tokens(other)
        own = (self.num_seats, self._keep_alive, self._trials, self._make_room, self._other, self._free)
        return SharedDraftModel(settings, *own, like=self)

    async def ping(self, patience: float) -> bool:
        """Return whether the drafter is idle, or ends its turn within `patience` seconds."""
        return self._pool is None or await self._pool.ping(patience)

    # --- monitoring -------------------------------------------------------------------------------------

    @property
    def file(self) -> str:
        """The file that tells this model from others: its adapter's, or its own."""
        return self._settings.adapter or self.path

    @property
    def num_used(self) -> int:
        """The number of taken seats."""
        return 0 if self._pool is None else self._pool.num_seats - self._pool.num_free

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the model is unloaded; None if it is in use, stays, or is unloaded."""
        at = self._put_away_at
        return None if self._pool is None or at is None else max(0.0, at - asyncio.get_running_loop().time())

    @property
    def keep_alive(self) -> float:
        """Idle seconds until the model is unloaded; see the class. May be set at any time."""
        return self._keep_alive

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        self._keep_alive = seconds
        self._on_release()

    # --- loading ----------------------------------------------------------------------------------------

    async def _load(self) -> None:
        async with self._change:
            self.state, self.failure = ModelState.LOADING, ""
            logger.info("> loading the draft model %s", self.file)
            try:
                if self._make_room is not None:
                    await self._make_room(self._settings, self.size_bytes)
                longest = [target() for target in self.targets]
                longest_text = max(longest) if all(longest) and longest else 0
                self._runtimes, pool, tables = await asyncio.to_thread(self._open, longest_text)
            except ForerunError as error:
                self._on_load_failed(str(error))
                raise
            except BaseException:
                self._on_load_failed("loading the draft model was cancelled; send the request again")
                raise
            if self._tables is None or pool.levels != self._levels:
                self._tables, self._levels = tables, pool.levels
                tables.teach(self.pace, pool.levels)
            pool.start()
            self._pool = pool
            self.state = ModelState.LOADED
            self._on_release()

    def _on_load_failed(self, reason: str) -> None:
        self.state, self.failure = ModelState.FAILED, reason
        logger.warning("x %s", reason)

    def _open(self, longest_text: int) -> tuple[list[LlamaRuntime], DraftPool, PaceTables]:
        runtimes = list[LlamaRuntime]()
        try:
            for settings in self._with_context(longest_text):
                runtimes.append(LlamaRuntime(settings, shared=None if runtimes else self._weights))
                runtimes[-1].grammars = self._grammars  # compiled grammars outlive the weights
            runtime, *others = runtimes
            for other in others:
                self._check_tokens(other)
            tables = self._tables or measure_pace(runtime)
            group = self._group
            if self._other is not None:
                group = partial(_offered(self._other.group), other=others[0])
            elif group is DraftGroup:
                group = group_of(runtime)
            told = self._on_release, tables.batches, group, self._turns
            pool = DraftPool(runtime, self.num_seats, *told)
            return runtimes, pool, tables
        except ForerunError:
            for each in runtimes:
                each.close()
            raise

    def _with_context(self, longest_text: int) -> list[LlamaSettings]:
        """Try the files and return their settings, with a context chosen if none is set."""
        settings = [self._settings] if self._other is None else [self._settings, self._other.settings]
        for each in settings:
            if self._trials is not None:
                self._trials.ensure(each, weights=True)
        if self._settings.n_ctx:
            return settings
        known = self.path == self.tokens.path
        kv_bytes = self.tokens.kv_bytes if known else 0
        for each in settings[known:]:
            with LlamaModel(each, weights=False) as other:
                kv_bytes += other.kv_bytes
        free = self._free(self._settings.gpu_layers)
        beside = max(1, free - self.size_bytes) if free else 0  # of which the weights need their part
        trained = self.tokens.context_length
        n_ctx = choose_context(trained, longest_text, self.num_seats, kv_bytes, beside)
        logger.info("the draft's context has %d tokens of %d bytes", n_ctx, kv_bytes)
        return [replace(each, n_ctx=n_ctx) for each in settings]

    def _check_tokens(self, other: LlamaModel) -> None:
        if len({Vocabulary(each.token_table()).fingerprint for each in (self.tokens, other)}) > 1:
            raise UserError(
                f"{other.path} has other tokens than the draft model {self.tokens.path}; take a model of the "
                "same family"
            )

    def _on_load_ended(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled():
            task.exception()  # waiting callers receive it; without any, `failure` reports it

    # --- unloading --------------------------------------------------------------------------------------

    async def _put_away(self) -> None:
        pool, runtimes = self._pool, self._runtimes
        if pool is None:
            return
        self._pool, self._runtimes = None, []
        self.state = ModelState.UNLOADED
        self._set_timer(None)
        if await pool.close(CLOSE_PATIENCE):
            for runtime in runtimes:
                await asyncio.to_thread(runtime.close)
            logger.info("< the draft model %s is unloaded", self.file)
        else:  # freeing memory that its thread still reads would end the process
            logger.error("! llama.cpp hangs in the draft model; its memory is lost until this process ends")

    def _on_release(self) -> None:
        """Start the idle time if no seat is taken or awaited."""
        if self._pool is not None and not self.num_used and not self._num_waiting:
            now, seconds = asyncio.get_running_loop().time(), self._keep_alive
            self._set_timer(now + seconds if seconds >= 0 else None)

    def _set_timer(self, at: float | None) -> None:
        """Set the unloading to this second of the loop's clock; None: not now."""
        if self._timer is not None:
            self._timer.cancel()
        self._put_away_at = at
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        async with self._change:
            if self._put_away_at is not None and not self._num_waiting:  # no caller has come since
                await self._put_away()


def group_of(runtime: LlamaRuntime) -> GroupMaker:
    """Return what makes groups of a draft with the target's tokens. A parallel one names its masks."""
    made: GroupMaker = _offered("parallel") if runtime.metadata(PARALLEL) else DraftGroup
    return made


def _offered(name: str) -> Any:
    """Return what makes groups of another kind: of two models (`OtherModel`), of other tokens than the
    target's (`translated`), or with masks (`parallel`). An installed package offers it as an entry point, as
    `schemes` does."""
    return offer("forerun.draft_groups", name, LocalError(f"no installed package offers the group {name}"))


def choose_context(trained: int, longest_text: int, seats: int, kv_bytes: int, free: int) -> int:
    """Return the KV cells of an automatic context: for a text as long as the draft was trained on (`trained`)
    and the target takes (`longest_text`; 0: unknown), and `SEAT_TOKENS` for each seat. They take at most
    `DRAFT_SHARE` of the `free` bytes (0: unknown), `kv_bytes` each."""
    longest = min(trained, longest_text) if longest_text else trained
    least = SEAT_TOKENS * seats
    return max(LEAST_CELLS, tokens_that_fit(kv_bytes, longest, least, free, DRAFT_SHARE))
