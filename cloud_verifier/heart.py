"""What a verifier lives by, whoever carries its calls: the worker's heartbeat, and a look at its files."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from cloud_verifier.telemetry.trust import DENIED, TENANT_LIMITS
from cloud_verifier.tls import LiveTls
from cloud_verifier.upkeep import Upkeep
from cloud_verifier.worker import Worker
from common.rpc.live_files import LiveFiles

NO_FILES: Mapping[str, LiveFiles[Any]] = {}

FLUSH_TIME = 2.0
"""Seconds after the time to leave in which the last messages get away. It is the end of it: whatever holds a
stream then, its cadence or an edge that does not read, the process is gone `FLUSH_TIME` after its grace."""


class Streams(Protocol):
    """What is done to all open streams of a service."""

    def hurry(self) -> None:
        """None is to last longer than what it has to say."""
        ...

    def turn_away(self) -> None:
        """End those of callers who are let in no more."""
        ...


class Heart:
    """Beats while it is entered. An async context manager, of the event loop that the calls come in.

    `files` are those that are looked after beside those of `tls`.
    """

    def __init__(
        self,
        worker: Worker,
        streams: Streams,
        tls: LiveTls | None = None,
        files: Mapping[str, LiveFiles[Any]] = NO_FILES,
    ) -> None:
        self._worker = worker
        self._streams = streams
        self._files = files
        self.upkeep = Upkeep(tls, files, self._changed)
        self._changed(TENANT_LIMITS)
        worker.monitor.trust = self.upkeep.trust
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def __aenter__(self) -> Heart:
        self._tasks = tuple(asyncio.create_task(each.run()) for each in (self._worker, self.upkeep))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what broke the heartbeat, if anything has: no step runs any more."""
        beat = self._tasks[0]
        if beat.done():
            beat.result()

    async def until(self, event: Coroutine[Any, Any, object], patience: float | None = None) -> None:
        """Until the event has come, or for at most `patience` seconds. Raises as `check`."""
        waiting = asyncio.ensure_future(event)
        both = {waiting, self._tasks[0]}
        await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    async def drain(self, grace: float) -> None:
        """Stop admitting, tell every session to go, and wait until they have. After `grace` seconds those
        that are still here are ended with a status that says so, and strict streams as soon as all is said.
        Raises as `check`."""
        self._worker.drain(grace)
        await self.until(self._worker.wait_until_gone(), grace)
        self._streams.hurry()
        await self.until(self._worker.wait_until_gone(), FLUSH_TIME)

    def _changed(self, name: str) -> None:
        """One of the files has brought another value."""
        if name == TENANT_LIMITS and name in self._files:
            self._worker.set_quotas(self._files[name].value)
        if name == DENIED:
            self._streams.turn_away()
