"""Runs processes of Forerun on one machine and ends them in the reverse order of their start.

`Rig` is a whole system: verifier and edge as processes, with the link between them in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from common.errors import LocalError, UnavailableError
from simulator.proxy import Bandwidth, Link, LinkDirection, Toxic, rtt

START_TIMEOUT = 180.0
"""Seconds until a process must be ready; importing torch from a slow disk takes tens of seconds."""

PRIVACY = ("--privacy", "off")
"""Privacy option of both sides, so that bytes measure the schemes and not the padding."""

LONGEST_LINE = 2**26  # bytes

END_TIMEOUT = 60.0
"""Seconds for a process to end after a signal."""


async def json_lines() -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON lines of standard input to its end: the other side of `RigProcess.write`."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


class RigProcess:
    """Runs a Forerun process that exchanges lines of JSON on its standard streams."""

    def __init__(self, name: str, *arguments: str, module: str = "forerun") -> None:
        self.name = name
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(cls, name: str, *arguments: str, module: str = "forerun") -> Self:
        """Make a process and spawn it."""
        child = cls(name, *arguments, module=module)
        await child.spawn()
        return child

    async def spawn(self) -> None:
        """Start the process."""
        await self._spawn(stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)

    async def _spawn(self, **streams: Any) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, **streams, limit=LONGEST_LINE)

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "spawned before"
        return self._process

    @property
    def code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.returncode

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


class Processes:
    """Ends its processes in the reverse order of their start. An async context manager."""

    def __init__(self, *, pin: bool = True) -> None:
        found = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores = found if pin and len(found) > 1 else []
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

    async def start(self, name: str, *arguments: str, module: str = "forerun") -> RigProcess:
        """Start one more process."""
        child = await RigProcess.start(name, *arguments, module=module)
        self._stack.push_async_callback(child.stop)
        return child

    async def start_verifier(self, *options: str, module: str = "forerun") -> tuple[RigProcess, str]:
        """Start a verifier on the second core. Return the process and its address once it listens."""
        command = ("verify",) if module == "forerun" else ()
        own = ("--listen", "127.0.0.1:0", "--json", "--grace", "0")
        child = await self.start("verifier", *command, *own, *options, *self.core(1), module=module)
        return child, (await child.read(START_TIMEOUT))["listening"]

    def core(self, index: int) -> list[str]:
        """Return the options that pin a process to a core; none with one core or without `pin`."""
        return ["--core", str(self._cores[index % len(self._cores)])] if self._cores else []


@dataclass(frozen=True, slots=True)
class RigSettings:
    """Sets the models and the link of a rig."""

    target: str
    draft: str
    rtt_ms: float = 60.0
    jitter_ms: float = 0.0
    bandwidth_kbps: float = 0.0  # KB/s each way; 0 = unlimited
    step_floor_ms: float = 0.0
    link_seed: int = 1
    recall: bool = False  # both sides propose repeated tokens
    drafter: str | None = None  # the verifier's own, as for `forerun verify`
    verifier_options: tuple[str, ...] = ()  # further ones of `forerun verify`

    @property
    def target_options(self) -> list[str]:
        """Return the options of `forerun verify` for the target and its step floor."""
        more = ["--step-floor", str(self.step_floor_ms)] if self.step_floor_ms else []
        more += ["--drafter", self.drafter] if self.drafter else []
        more += self.verifier_options
        return ["--model", self.target, "--threads", "1", "--log-level", "warning", *more]


class Rig(Processes):
    """Starts verifier, link and edge, in that order."""

    def __init__(self, settings: RigSettings) -> None:
        super().__init__()
        self.settings = settings
        self._edge: RigProcess | None = None
        self._link: Link | None = None

    async def _begin(self) -> None:
        settings = self.settings
        _, address = await self._start_verifier()
        toxics: list[Toxic] = list(rtt(settings.rtt_ms, jitter=settings.jitter_ms))
        if settings.bandwidth_kbps:
            toxics += [Bandwidth(settings.bandwidth_kbps, stream=stream) for stream in LinkDirection]
        link = Link.to(address, *toxics, seed=settings.link_seed)
        self._link = await self._stack.enter_async_context(link)
        self._edge = await self.start_edge()

    async def start_edge(self) -> RigProcess:
        """Start one more edge behind the link and wait until it is ready."""
        where = ["--verifier", str(self.link.address), "--draft", self.settings.draft]
        more = ["--threads", "1", "--remember", "0", *PRIVACY, *self.core(0)]
        edge = await self.start("edge", "edge", "pipe", *where, *more)
        await edge.read(START_TIMEOUT)
        return edge

    @property
    def link(self) -> Link:
        assert self._link is not None, "entered before"
        return self._link

    async def events(
        self, prompt: str, policy: str, sampling: dict[str, Any], **switches: bool | str
    ) -> AsyncIterator[dict[str, Any]]:
        """Run one completion on the edge and yield its events, the last of which is `done`.

        `switches` are `recall` (default: the settings'), `drafting`, `ahead` and `acceptance`, as in
        `forerun edge pipe`.
        Raise `LocalError` for a request that the edge refused.
        """
        assert self._edge is not None, "entered before"
        asked = {"recall": self.settings.recall, **switches}
        request = {"prompt": prompt, "policy": policy, "sampling": sampling, **asked}
        await self._edge.write(request)
        while True:
            event = await self._edge.read()
            if event["event"] == "error":
                raise LocalError(f"the edge could not complete a prompt: {event['message']}")
            yield event
            if event["event"] == "done":
                return

    async def complete(
        self, prompt: str, policy: str, sampling: dict[str, Any], **switches: bool | str
    ) -> dict[str, Any]:
        """Run one completion. Return its `done` event with the bytes that crossed the link."""
        before = self.link.counters
        *_, event = [event async for event in self.events(prompt, policy, sampling, **switches)]
        after = self.link.counters
        event["link_bytes_up"] = after.upstream.num_bytes - before.upstream.num_bytes
        event["link_bytes_down"] = after.downstream.num_bytes - before.downstream.num_bytes
        return event

    async def _start_verifier(self) -> tuple[RigProcess, str]:
        return await self.start_verifier(*self._verifier_options())

    def _verifier_options(self) -> list[str]:
        recall = "--recall" if self.settings.recall else "--no-recall"
        return [*self.settings.target_options, recall, *PRIVACY]


def check_models(target: Path, draft: Path) -> None:
    """Raise `UnavailableError` with a remedy if a model of the demo pair is missing."""
    for path in (target, draft):
        if not path.exists():
            raise UnavailableError(
                f"{path} is missing; run from a clone, or make it with `python -m lab.demo_models.train`"
            )
