"""Run the worker's heartbeat and reread changed files, for gRPC and Ray Serve alike."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping
from typing import Any

from cloud_verifier.identity.server_tls import LiveServerTls
from cloud_verifier.server.calls import VerifierService
from cloud_verifier.server.worker import Worker
from cloud_verifier.telemetry.monitor import CERTIFICATE, DENIED, TENANT_LIMITS, Trust
from common.config.live_files import LiveFiles

logger = logging.getLogger(__name__)

LOOK_EVERY = 10.0
"""Seconds between looks. Certificates and keys are also checked at each use. The looks report a broken file
before the current one expires, and apply new limits without a call."""

NO_FILES: Mapping[str, LiveFiles[Any]] = {}

FLUSH_TIME = 2.0
"""Seconds for the last messages after the drain's grace. Then the process ends, even if an edge does not
read."""


class Lifecycle:
    """Runs the heartbeat and rereads renewed files. An async context manager in the event loop of the calls.

    `files`, by name, are reread like the files of `tls`.
    """

    def __init__(
        self,
        worker: Worker,
        service: VerifierService,
        tls: LiveServerTls | None = None,
        files: Mapping[str, LiveFiles[Any]] = NO_FILES,
    ) -> None:
        self._worker = worker
        self._service = service
        self._tls = tls
        self._files = {**({} if tls is None else {CERTIFICATE: tls.files}), **files}
        if TENANT_LIMITS in files:
            self._changed(TENANT_LIMITS)
        worker.monitor.trust = self._trust
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def __aenter__(self) -> Lifecycle:
        self._tasks = tuple(asyncio.create_task(run()) for run in (self._worker.run, self.keep_looking))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise the error that broke the heartbeat, if one did. No step runs any more then."""
        beat = self._tasks[0]
        if beat.done():
            beat.result()

    async def until(self, event: Coroutine[Any, Any, object], patience: float | None = None) -> None:
        """Wait for the event, at most `patience` seconds. Raises as `check`."""
        waiting = asyncio.ensure_future(event)
        both = {waiting, self._tasks[0]}
        await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    async def drain(self, grace: float) -> None:
        """Stop admitting, ask every session to leave, and wait for that. After `grace` seconds the remaining
        sessions are ended with an error. Raises as `check`."""
        self._worker.drain(grace)
        await self.until(self._worker.wait_until_gone(), grace)
        await self.until(self._worker.wait_until_gone(), FLUSH_TIME)

    def look(self) -> None:
        for name, files in self._files.items():
            if files.refresh():
                self._changed(name)

    async def keep_looking(self) -> None:
        """Check all files every `LOOK_EVERY` seconds, until cancelled."""
        while self._files:
            await asyncio.sleep(LOOK_EVERY)
            try:
                self.look()
            except Exception:  # outermost frame of this task: without it the looks would end
                logger.exception("! a file could not be checked")

    def _changed(self, name: str) -> None:
        if name == TENANT_LIMITS:
            self._worker.set_quotas(self._files[name].value)
        if name == DENIED:
            self._service.turn_away()

    def _trust(self) -> Trust:
        return Trust(
            math.inf if self._tls is None else self._tls.expires_at,
            {name: files.num_reloads for name, files in self._files.items()},
            {name: files.num_failures for name, files in self._files.items()},
        )
