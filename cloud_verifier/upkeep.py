"""Looks after the files of a verifier that others renew while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cloud_verifier.telemetry.trust import CERTIFICATE, Trust
from cloud_verifier.tls import LiveTls
from common.rpc.live_files import LiveFiles

logger = logging.getLogger(__name__)

LOOK_EVERY = 10.0
"""Seconds. Certificates and keys are looked at whenever they are used, too; this is so that a file which
cannot be used is told before the one in use has ended, and that limits change without anybody coming."""


class Upkeep:
    """Args: tls, of the port for edges; files, by name; on_change, called with the name when one has brought
    another value, in the event loop's thread."""

    def __init__(
        self,
        tls: LiveTls | None,
        files: Mapping[str, LiveFiles[Any]],
        on_change: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._tls = tls
        self._files = {**({} if tls is None else {CERTIFICATE: tls.files}), **files}
        self._on_change = on_change

    def look(self) -> None:
        """At all of them, now."""
        for name, files in self._files.items():
            if files.refresh():
                self._on_change(name)

    async def run(self) -> None:
        """Until cancelled."""
        while self._files:
            await asyncio.sleep(LOOK_EVERY)
            try:
                self.look()
            except Exception:  # outermost frame of this task: without it no file would be looked at again
                logger.exception("! a file could not be looked at")

    def trust(self) -> Trust:
        """For metrics."""
        end = {} if self._tls is None else {"expires_at": self._tls.expires_at}
        return Trust(
            **end,
            reloads={name: files.num_reloads for name, files in self._files.items()},
            failures={name: files.num_failures for name, files in self._files.items()},
        )
