"""Forerun's own processes, as a measurement starts and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from common.errors import UnavailableError

START_TIME = 180.0
"""Seconds until a process must serve."""

END_TIME = 60.0
"""Seconds within which one that was told to end must have."""


class Program:
    """A Forerun process that is ended and started again with the same arguments."""

    def __init__(
        self, name: str, log: Path, environment: dict[str, str], *arguments: str, module: str = "forerun"
    ) -> None:
        self.name = name
        self._module = module
        self._log = log
        self._environment = {**os.environ, **environment}
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "started before"
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, *self._arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "started before"
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def gone(self, patience: float = END_TIME) -> None:
        """Wait until it has ended. Raises `UnavailableError` if it does not."""
        assert self._process is not None, "started before"
        try:
            async with asyncio.timeout(patience):
                await self._process.wait()
        except TimeoutError as error:
            raise UnavailableError(
                f"the {self.name} was told to end and is still there after {patience:g} s"
            ) from error

    def check(self) -> None:
        """Raise `UnavailableError` if it ended by itself."""
        if self.code is not None:
            raise UnavailableError(f"the {self.name} ended with code {self.code}; its log is {self._log}")

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            await self.gone()


async def attempts(pause: float = 0.05) -> AsyncIterator[None]:
    """One after the other until it is too late. Raises `UnavailableError` then."""
    for _ in range(int(START_TIME / pause)):
        yield
        await asyncio.sleep(pause)
    raise UnavailableError(f"a process was not ready within {START_TIME:g} s")


def own_places(folder: Path) -> dict[str, str]:
    """Environment of a daemon whose folders are all below this one; they are made."""
    folder = folder.absolute()
    places = {f"XDG_{name}_HOME": folder / name.lower() for name in ("STATE", "CONFIG", "DATA", "CACHE")}
    places["XDG_RUNTIME_DIR"] = folder / "runtime"
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    return {name: str(place) for name, place in places.items()}
