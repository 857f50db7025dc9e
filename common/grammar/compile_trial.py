"""Try untrusted grammars in a separate process (`compile_trial_child`) before they are compiled here.

llguidance's limits do not bound a compile: 75 bytes of JSON schema take gigabytes and minutes, and a thread
cannot be ended. A grammar that passes its trial costs this process little, so it is compiled here as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from common.child import ChildProcess
from common.errors import CapacityError, UserError
from common.grammar.tokens import Tokens

CHILD = "common.grammar.compile_trial_child"

MAX_PROCESSES = 2
"""Trials at once. The trials of one tenant follow each other (`TrialTurns`)."""

PATIENCE = 10.0
"""Seconds for an answer. The child itself ends a compile after 8."""

MAX_KNOWN = 1024
"""Grammars whose results are remembered, by their hashes."""

MAX_LINE = 2**15  # bytes of an answer

ENDED = {
    "time": "it takes too long to compile",
    "memory": "it takes too much memory to compile",
}


class TrialResult(NamedTuple):
    why: str = ""  # the grammar is refused; empty if it fits
    size: int = 0  # bytes that it takes, if it fits


class GrammarTrials:
    """Runs the trials of one vocabulary's grammars. Thread-safe."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._known = OrderedDict[bytes, TrialResult]()  # by the grammar's hash
        self._lock = threading.Lock()
        self._idle = queue.LifoQueue[ChildProcess | None]()
        for _ in range(MAX_PROCESSES):
            self._idle.put(None)

    def warm(self) -> None:
        """Start one process, so that the first grammar need not wait for it. Raises `LocalError`
        or `CapacityError` if it does not start."""
        process = self._idle.get()
        try:
            process = process or self._started()
        finally:
            self._idle.put(process)

    def check(self, grammar: str) -> int:
        """Return the bytes that a grammar needs, if it may be compiled here. Raises `UserError` if it is
        refused or costs too much, `CapacityError` if this machine is too busy for the trial, and `LocalError`
        if no process can be started. The first trial of a grammar takes some milliseconds."""
        name = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            result = self._known.get(name)
            if result is not None:
                self._known.move_to_end(name)
        if result is None:
            result = self._tried(grammar)
            with self._lock:
                self._known[name] = result
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
        if result.why:
            raise UserError(result.why)
        return result.size

    def _started(self) -> ChildProcess:
        return ChildProcess(CHILD, self._tokens.outline(), max_line=MAX_LINE, purpose="grammars")

    def _tried(self, grammar: str) -> TrialResult:
        process = self._idle.get()
        try:
            if process is None or not process.is_alive:
                process = self._started()
            answer = process.ask({"grammar": grammar}, PATIENCE)
        finally:
            self._idle.put(process)
        match answer:
            case {"fits": str(size)}:
                return TrialResult(size=int(size))
            case {"refused": str(words)}:
                return TrialResult(words)
            case {"ended": str(what)} if what in ENDED:
                return TrialResult(f"the grammar is refused: {ENDED[what]}; make it smaller or simpler")
            case _:  # the clock, or the process is gone: that says nothing about the grammar
                raise CapacityError("this machine is too busy to compile the grammar; try later")


MAX_WAITING = 256
"""Checks of one tenant at once, the running one included. Each holds an `Open`."""


class TrialTurns:
    """Runs checks in threads, for one event loop. One check of each tenant runs at a time. A tenant's
    connections take turns: a grammar waits for one grammar of each other connection, not for all earlier.

    The threads are daemons, so a process that ends does not wait for them.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], int] = {}
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}  # of tenants, and of their connections

    async def run(self, tenant: str, connection: str, check: Callable[[], None]) -> None:
        """Run `check` in its turn. Raises its errors, and `CapacityError` if too many of the tenant's checks
        wait."""
        keys = (tenant, connection), (tenant,)
        if self._waiting.get(keys[1], 0) >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} grammars of this tenant wait to be compiled; try later")
        held = list[asyncio.Lock]()

        def over(_: object = None) -> None:
            for lock in held:
                lock.release()
            for key in keys:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key], self._locks[key]

        locks = [self._locks.setdefault(key, asyncio.Lock()) for key in keys]
        for key in keys:
            self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            for lock in locks:
                await lock.acquire()
                held.append(lock)
            running = in_thread(check)
        except BaseException:
            over()
            raise
        running.add_done_callback(over)  # if the caller goes, its turn still lasts as long as its thread
        await asyncio.shield(running)


def in_thread(work: Callable[[], None], name: str = "grammar check") -> asyncio.Future[None]:
    """Run `work` in a daemon thread of this name, for which the process does not wait when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # nobody may be left to hear it

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:  # noqa: BLE001 - told to whoever waits
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
