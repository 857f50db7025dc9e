"""Grammars from strangers are compiled in a process of their own first (`trial_child`).

llguidance's limits do not bound a compile: 75 bytes of JSON schema take gigabytes and minutes, and a thread
cannot be ended. A grammar that passes its trial costs this process little, so it is compiled here as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from common.errors import CapacityError, LocalError, UserError
from common.grammar.tokens import Tokens

CHILD = "common.grammar.trial_child"

MAX_PROCESSES = 2
"""Trials at once. A tenant's take one after the other (`Turns`), so one tenant leaves room for another's."""

PATIENCE = 10.0
"""Seconds for an answer. The child itself ends a compile after 8."""

START_PATIENCE = 30.0
"""Seconds for a process to begin."""

MAX_KNOWN = 1024
"""Grammars whose results are remembered, by their hashes."""

MAX_LINE = 2**15  # bytes of an answer

ENDED = {
    "time": "it takes too long to compile",
    "memory": "it takes too much memory to compile",
}


class Result(NamedTuple):
    """The result of one trial."""

    why: str = ""  # the grammar is refused; empty if it fits
    size: int = 0  # bytes that it takes, if it fits


class Trials:
    """The trials of one vocabulary's grammars. Any thread may ask."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._known = OrderedDict[bytes, Result]()  # by the grammar's hash
        self._lock = threading.Lock()
        self._idle = queue.LifoQueue[_Process | None]()
        for _ in range(MAX_PROCESSES):
            self._idle.put(None)

    def warm(self) -> None:
        """Start one process, so that the first grammar need not wait for it. Raises `LocalError`."""
        process = self._idle.get()
        try:
            process = process or _Process(self._tokens)
        finally:
            self._idle.put(process)

    def check(self, grammar: str) -> int:
        """The bytes that a grammar takes which may be compiled here. Raises `UserError` if it is refused or
        costs too much, `CapacityError` if this machine is too busy to tell, and `LocalError` if no process
        can be started. The first time of a grammar takes some milliseconds."""
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

    def _tried(self, grammar: str) -> Result:
        process = self._idle.get()
        try:
            if process is None or not process.is_alive:
                process = _Process(self._tokens)
            found = process.ask({"grammar": grammar}, PATIENCE)
        finally:
            self._idle.put(process)
        match found:
            case {"fits": str(size)}:
                return Result(size=int(size))
            case {"refused": str(words)}:
                return Result(words)
            case {"ended": str(what)} if what in ENDED:
                return Result(f"the grammar is refused: {ENDED[what]}; make it smaller or simpler")
            case _:  # the clock, or the process is gone: that says nothing about the grammar
                raise CapacityError("this machine is too busy to compile the grammar; try later")


class _Process:
    """One child. It ends by itself when it has had nothing to do for long, or when this process has gone."""

    def __init__(self, tokens: Tokens) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what it would write there could quote a grammar
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            words = f"no process can be started to compile grammars: {error.strerror or error}"
            raise LocalError(words) from error
        weakref.finalize(self, _end, self._process)
        if self.ask(tokens.outline(), START_PATIENCE) is None:
            raise LocalError(
                f"the process that compiles grammars does not begin; `{sys.executable} -m {CHILD}` says why"
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: dict[str, Any], patience: float) -> dict[str, Any] | None:
        """Its answer. None if none comes in time; the process is ended then."""
        process = self._process
        assert process.stdin is not None, "started with a pipe"
        assert process.stdout is not None, "started with a pipe"
        watch = threading.Timer(patience, process.kill)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            found: dict[str, Any] = json.loads(process.stdout.readline(MAX_LINE))
        except (OSError, ValueError):
            process.kill()
            process.wait()
            return None
        finally:
            watch.cancel()
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nobody will ask it any more."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


MAX_WAITING = 256
"""Checks of one tenant at once, the running one included. Each holds an `Open`."""


class Turns:
    """Runs checks in threads, for one event loop. One of each tenant runs at a time, and within a tenant its
    connections take turns: a grammar waits for one of each other connection, not for all that came before.

    The threads are daemons: a process that is told to go does not wait for them.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], int] = {}
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}  # of tenants, and of their connections

    async def run(self, tenant: str, connection: str, check: Callable[[], None]) -> None:
        """Run `check` when it is its turn. Raises what it raises, and `CapacityError` if too many of the
        tenant's wait."""
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


def in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a daemon thread, for which the process does not wait when it ends."""
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

    threading.Thread(target=run, name="grammar check", daemon=True).start()
    return future
