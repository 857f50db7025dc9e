"""Provides ports, folders and patience for Forerun's processes that a measurement starts."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from common.errors import UnavailableError
from lab.rig import RigProcess, attempts, own_places

__all__ = ["LoggedProcess", "attempts", "free_port", "own_places"]

LOWEST_PORT, NUM_PORTS = 20_000, 12_000
"""The ports that `free_port` gives. They lie below the ports that kernels give to connections."""

_ports = itertools.count()


class LoggedProcess(RigProcess):
    """Runs a process that writes to a log. The process may be ended and spawned again with its arguments.

    The process speaks no JSON, unless `speaks`: then only its standard error goes to the log.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        log: Path,
        speaks: bool = False,
        module: str = "forerun",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, *arguments, module=module, environment=environment)
        self._log, self._speaks = log, speaks

    async def spawn(self) -> None:
        """Start the process, for the first time or again."""
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        with self._log.open("ab") as log:
            stdin, stdout = (pipe, pipe) if self._speaks else (none, log)
            await self._spawn(stdin=stdin, stdout=stdout, stderr=log)

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raise `UnavailableError` if the process ended by itself."""
        if self.code is not None:
            raise UnavailableError(f"the {self.name} ended with code {self.code}; its log is {self._log}")


def free_port() -> int:
    """Return a loopback port that no process listens on, for processes that are started one by one.

    A process never gives a port twice. A process's id decides its first port. After some tens of ports
    they may meet; then only ports in use at that moment are left out.
    """
    for _ in range(NUM_PORTS):
        port = LOWEST_PORT + (os.getpid() * 97 + next(_ports)) % NUM_PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    raise OSError(errno.EADDRINUSE, f"all ports from {LOWEST_PORT} on are taken")
