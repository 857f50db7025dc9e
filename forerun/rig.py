"""Runs processes of Forerun on one machine and ends them in the reverse order of their start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from common.errors import UnavailableError
from common.sampling import SamplingParams
from edge_client.process.client import LocalClient, ServerEvent, connect
from edge_client.process.paths import find_paths
from edge_client.texts.events import TextEvent
from forerun.chat.following import DONE, read_events

START_TIMEOUT = 180.0
"""Seconds until a process must be ready; importing torch from a slow disk takes tens of seconds."""

DEVICE = "device"
"""Policy of a text that the draft model writes alone. It may differ from the target's."""

LONGEST_LINE = 2**26  # bytes

END_TIMEOUT = 60.0
"""Seconds for a process to end after a signal."""


class RigProcess:
    """Runs a Forerun process that exchanges lines of JSON on its standard streams."""

    def __init__(
        self,
        name: str,
        *arguments: str,
        module: str = "forerun",
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`core`: the processor core to run on; None: any. `environment`: variables beside this process's."""
        self.name = name
        self._command = (sys.executable, "-m", module, *arguments)
        self._core = core
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def spawn(self) -> None:
        """Start the process."""
        await self._spawn(stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)

    async def _spawn(self, **streams: Any) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, **streams, limit=LONGEST_LINE, env=self._environment
        )
        if self._core is not None:  # before it starts threads, which inherit the core
            os.sched_setaffinity(self._process.pid, {self._core})

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "spawned before"
        return self._process

    @property
    def code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.returncode

    def check(self) -> None:
        """Raise `UnavailableError` if the process ended by itself."""
        if self.code is not None:
            raise UnavailableError(f"the {self.name} ended with code {self.code}; see its message above")

    async def read(self, patience: float | None = None) -> dict[str, Any]:
        """Return the next line. Raise `UnavailableError` if the process ended or is late."""
        assert self.process.stdout is not None, "started with a pipe"
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), patience)
        except TimeoutError as error:
            raise UnavailableError(f"the {self.name} was not ready within {patience:.0f} s") from error
        if not line:
            code = await self.process.wait()
            raise UnavailableError(f"the {self.name} ended with code {code}; see its message above")
        message: dict[str, Any] = json.loads(line)
        return message

    async def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None, "started with a pipe"
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def gone(self, patience: float = END_TIMEOUT) -> None:
        """Wait for the process's end. Raise `UnavailableError` after `patience` seconds."""
        try:
            await asyncio.wait_for(self.process.wait(), patience)
        except TimeoutError as error:
            words = f"the {self.name} got a signal to end and still runs after {patience:g} s"
            raise UnavailableError(words) from error

    async def stop(self, patience: float = 10.0) -> None:
        """End the process by SIGTERM, after `patience` seconds by force."""
        if self._process is None or self.code is not None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.send(signal.SIGTERM)
        with contextlib.suppress(UnavailableError):
            await self.gone(patience)
        await self.close()

    async def close(self) -> None:
        """End the process by force, even if it is frozen."""
        if self._process is not None and self.code is None:
            self.send(signal.SIGKILL)
            await self.gone()


async def attempts(pause: float = 0.05) -> AsyncIterator[None]:
    """Yield one attempt after the other. Raise `UnavailableError` after `START_TIMEOUT`."""
    for _ in range(int(START_TIMEOUT / pause)):
        yield
        await asyncio.sleep(pause)
    raise UnavailableError(f"a process was not ready within {START_TIMEOUT:g} s")


def own_places(folder: Path) -> dict[str, str]:
    """Return the environment of a daemon with all folders below this one, and make the folders."""
    folder = folder.absolute()
    places = {f"XDG_{name}_HOME": folder / name.lower() for name in ("STATE", "CONFIG", "DATA", "CACHE")}
    places["XDG_RUNTIME_DIR"] = folder / "runtime"
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    return {name: str(place) for name, place in places.items()}


class RigEdge:
    """Writes texts by the API of a daemon, one after the other."""

    def __init__(self, client: LocalClient, draft: str) -> None:
        """`draft`: the daemon's name of its draft model."""
        self._client, self._draft = client, draft

    @classmethod
    async def ready(cls, child: RigProcess, places: Mapping[str, str]) -> Self:
        """Return the edge of a daemon once it answers, has a verifier and has loaded its draft model."""
        client = await _serving(child, places)
        cards = client.get("/v1/models")["data"]
        edge = cls(client, next(each["id"] for each in cards if each["meta"]["writer"] == "draft"))
        async for _ in edge.events("\n", DEVICE, SamplingParams(max_tokens=1)):
            pass
        return edge

    async def events(
        self, prompt: str, policy: str, sampling: SamplingParams, **ours: Any
    ) -> AsyncIterator[tuple[float, TextEvent]]:
        """Write a text and yield its events with their times of arrival, seconds of the monotonic clock.

        `ours` are fields of the request's own object `forerun`. Raise the `ForerunError` that ends the text.
        """
        body = {"prompt": prompt, "stream": True, **_fields(sampling), "forerun": {"origins": True, **ours}}
        if policy == DEVICE:
            body["model"] = self._draft
        else:
            body["forerun"]["policy"] = policy
        frames = self._client.events("/v1/completions", body)
        while True:
            came_at, frame = await asyncio.to_thread(_next, frames)
            if frame is None:
                raise UnavailableError("the edge ended a text before it was whole")
            if frame.data == DONE:
                return
            for event in read_events(frame.json()):
                yield came_at, event


async def _serving(child: RigProcess, places: Mapping[str, str]) -> LocalClient:
    """Return a client of a daemon once it answers and has a verifier."""
    async for _ in attempts():
        child.check()
        with contextlib.suppress(UnavailableError):
            client = connect(find_paths(places).daemon)
            if all(each["health"] == "ready" for each in client.get("/v1/status")["verifiers"]):
                return client
    raise AssertionError("the attempts end with an error")


def _next(frames: Iterator[ServerEvent]) -> tuple[float, ServerEvent | None]:
    frame = next(frames, None)
    return time.monotonic(), frame


def _fields(sampling: SamplingParams) -> dict[str, Any]:
    """Return the sampling parameters as fields of a request, all of them: none is the target's default."""
    given = asdict(sampling)
    grammar, given["logit_bias"] = given.pop("grammar"), {str(token): by for token, by in sampling.logit_bias}
    if grammar:
        raise ValueError("the rig sends no grammar")
    return given


class Processes:
    """Ends its processes in the reverse order of their start. An async context manager."""

    def __init__(self, *, pin: bool = True) -> None:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores = allowed if pin and len(allowed) > 1 else []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        """Start the first processes."""

    async def start(
        self,
        name: str,
        *arguments: str,
        module: str = "forerun",
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RigProcess:
        """Start one more process, on the core of this index (see `core`)."""
        child = RigProcess(name, *arguments, module=module, core=self.core(core), environment=environment)
        await child.spawn()
        self._stack.push_async_callback(child.stop)
        return child

    async def start_verifier(self, *options: str, module: str = "") -> tuple[RigProcess, str]:
        """Start `forerun verify`, or a `module` like it, on the second core. Return the process and its
        address once it listens."""
        own = ("--listen", "127.0.0.1:0", "--json", "--grace", "0")
        what = () if module else ("verify",)
        child = await self.start("verifier", *what, *own, *options, module=module or "forerun", core=1)
        return child, (await child.read(START_TIMEOUT))["listening"]

    async def start_edge(self, *options: str) -> RigEdge:
        """Start a daemon with folders of its own on the first core, and wait until it is ready."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forerun-rig-"))
        places = own_places(Path(folder))
        own = ("--listen", "127.0.0.1:0", "--draft-seats", "1", "--keep-alive=-1")
        quiet = ("--remember", "0", "--log-level", "error")
        child = await self.start("edge", "edge", *own, *quiet, *options, core=0, environment=places)
        return await RigEdge.ready(child, places)

    def core(self, index: int | None) -> int | None:
        """Return the number of a core; None with one core or without `pin`."""
        return self._cores[index % len(self._cores)] if self._cores and index is not None else None
