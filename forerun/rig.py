"""A whole system on one machine: verifier and edge as processes, the link between them here."""

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
from types import TracebackType
from typing import Any, Self

from common.errors import LocalError, UnavailableError
from link import Bandwidth, Link, Stream, Toxic, rtt

START_TIMEOUT = 180.0
"""Seconds until a part must be ready; importing torch on a slow disk takes tens of them."""


@dataclass(frozen=True, slots=True)
class RigSettings:
    """What runs, and over which link."""

    target: str
    draft: str
    rtt_ms: float = 60.0
    jitter_ms: float = 0.0
    bandwidth_kbps: float = 0.0  # KB/s each way; 0 = unlimited
    step_floor_ms: float = 0.0
    link_seed: int = 1
    recall: bool = False  # on the verifier; the edge is told with each request
    ngrams: int = 0  # of the edge: with more than none a text depends on those before it
    privacy: str = "off"  # on both sides; off, since figures of bytes compare what schemes have to say
    pin: bool = True  # drafter and verifier to a core each, where there are two


class Child:
    """A Forerun process that speaks lines of JSON on its standard output."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, name: str, *arguments: str, module: str = "forerun") -> Self:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )  # fmt: skip
        return cls(name, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self, patience: float | None = None) -> dict[str, Any]:
        """Its next line. Raises `UnavailableError` if it ended or is late."""
        assert self._process.stdout is not None, "started with a pipe"
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), patience)
        except TimeoutError as error:
            raise UnavailableError(f"the {self.name} was not ready within {patience:.0f} s") from error
        if not line:
            code = await self._process.wait()
            raise UnavailableError(f"the {self.name} ended with code {code}; its message stands above")
        message: dict[str, Any] = json.loads(line)
        return message

    async def write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def stop(self, patience: float = 10.0) -> None:
        """End it kindly, else by force."""
        if self._process.returncode is not None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), patience)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class Rig:
    """Verifier, link and edge, started in that order. An async context manager."""

    def __init__(self, settings: RigSettings) -> None:
        self.settings = settings
        self._stack = contextlib.AsyncExitStack()
        self._edge: Child | None = None
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        try:
            verifier = await self._start("verifier", *self._verifier_arguments())
            address = await self._reach((await verifier.read(START_TIMEOUT))["listening"])
            self._link = await self._stack.enter_async_context(self._make_link(address))
            self._edge = await self._start("edge", *self._edge_arguments(str(self._link.address)))
            await self._edge.read(START_TIMEOUT)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def link(self) -> Link:
        assert self._link is not None, "entered before"
        return self._link

    async def events(
        self, prompt: str, policy: str, sampling: dict[str, Any], **switches: bool
    ) -> AsyncIterator[dict[str, Any]]:
        """Run one completion on the edge; its events, the last of which is `done`. `switches` are
        `recall` (off unless given) and `drafting`, as `forerun edge pipe` has them. Raises `LocalError` for
        a request that the edge refused."""
        assert self._edge is not None, "entered before"
        asked = {"recall": False, **switches}
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
        self, prompt: str, policy: str, sampling: dict[str, Any], **switches: bool
    ) -> dict[str, Any]:
        """Run one completion; its `done` event, with the bytes that crossed the link meanwhile."""
        before = self.link.counters
        *_, event = [event async for event in self.events(prompt, policy, sampling, **switches)]
        after = self.link.counters
        event["link_bytes_up"] = after.upstream.num_bytes - before.upstream.num_bytes
        event["link_bytes_down"] = after.downstream.num_bytes - before.downstream.num_bytes
        return event

    async def _reach(self, verifier: str) -> str:
        """Where the link finds the verifier; for those who put something between."""
        return verifier

    async def _start(self, name: str, *arguments: str) -> Child:
        child = await Child.start(name, *arguments)
        self._stack.push_async_callback(child.stop)
        return child

    def _make_link(self, address: str) -> Link:
        settings = self.settings
        toxics: list[Toxic] = list(rtt(settings.rtt_ms, jitter=settings.jitter_ms))
        if settings.bandwidth_kbps:
            toxics += [Bandwidth(settings.bandwidth_kbps, stream=stream) for stream in Stream]
        return Link.to(address, *toxics, seed=settings.link_seed)

    def _verifier_arguments(self) -> list[str]:
        settings = self.settings
        floor = ["--step-floor", str(settings.step_floor_ms)] if settings.step_floor_ms else []
        common = ["verify", "--model", settings.target, "--listen", "127.0.0.1:0", "--json", "--threads", "1"]
        recall = ["--recall" if settings.recall else "--no-recall"]
        common += ["--privacy", settings.privacy]
        return [*common, "--grace", "0", "--log-level", "warning", *floor, *recall, *self._core(1)]

    def _edge_arguments(self, address: str) -> list[str]:
        common = ["edge", "pipe", "--verifier", address, "--draft", self.settings.draft, "--threads", "1"]
        more = ["--ngrams", str(self.settings.ngrams), "--privacy", self.settings.privacy]
        return [*common, *more, *self._core(0)]

    def _core(self, index: int) -> list[str]:
        """A core of its own for each part, if the machine has them."""
        if not self.settings.pin or not hasattr(os, "sched_getaffinity"):
            return []
        cores = sorted(os.sched_getaffinity(0))
        return ["--core", str(cores[index])] if len(cores) > 1 else []


def check_models(target: Path, draft: Path) -> None:
    """Raise `UnavailableError` with what to do if the demo pair is not there."""
    for path in (target, draft):
        if not path.exists():
            raise UnavailableError(
                f"{path} is missing; run from a clone, or `python -m demo_models.train` makes it"
            )
