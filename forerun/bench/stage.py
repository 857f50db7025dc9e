"""Who takes part in a load, as processes: a measured verifier, and clients on another core."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from forerun.bench.job import Job, TextRun, runs_from_json
from forerun.bench.texts import Text
from forerun.rig import START_TIMEOUT, Child
from simulator.knowledge import Candidates

Sample = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What is started. `verifier` are options of `forerun verify`, the model's among them."""

    verifier: tuple[str, ...]
    client_processes: int = 1
    pin: bool = True  # verifier and clients to a core each, where there are two

    @property
    def cores(self) -> list[int]:
        """Those that this process may use; none if nothing is to be pinned."""
        found = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return found if self.pin and len(found) > 1 else []


@dataclass(slots=True)
class Outcome:
    """What a load brought. Times in seconds, absolute ones monotonic."""

    runs: list[TextRun]
    began_at: float
    verifier: dict[str, Any]  # `Meter.take` over the load, and what else a host tells
    client_cpu: list[float]  # share of a core that each process of clients took
    rests: list[dict[str, Any]]  # what each process of clients counted since its last sample


@dataclass(slots=True)
class Verifier:
    """A host, started."""

    child: Child
    address: str

    @classmethod
    async def start(cls, arguments: Sequence[str], core: int | None) -> Self:
        pinned = [] if core is None else ["--core", str(core)]
        child = await Child.start("verifier", *HOST, *arguments, *pinned, module="forerun.bench.host")
        try:
            return cls(child, (await child.read(START_TIMEOUT))["listening"])
        except BaseException:
            await child.stop()
            raise

    async def take(self, objects: bool = False) -> dict[str, Any]:
        """What it did since the last call, see `forerun.bench.host`."""
        await self.child.write({"objects": objects})
        return await self.child.read()


HOST = ("--listen", "127.0.0.1:0", "--json", "--grace", "0")


@dataclass(slots=True)
class Stage:
    """Verifier and clients, started in that order. An async context manager."""

    settings: StageSettings
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _verifier: Verifier | None = None
    _clients: list[Child] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        cores = self.settings.cores
        try:
            self._verifier = await self.start_verifier(self.settings.verifier)
            for place in range(self.settings.client_processes):
                free = [core for core in cores if core != cores[1]]
                pinned = ["--core", str(free[place % len(free)])] if free else []
                child = await Child.start("clients", *pinned, module="forerun.bench.clients")
                self._stack.push_async_callback(child.stop)
                self._clients.append(child)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def verifier(self) -> Verifier:
        assert self._verifier is not None, "entered before"
        return self._verifier

    async def start_verifier(self, arguments: Sequence[str]) -> Verifier:
        """One more, on the core of the first; it stops with the stage."""
        cores = self.settings.cores
        verifier = await Verifier.start(arguments, cores[1] if cores else None)
        self._stack.push_async_callback(verifier.child.stop)
        return verifier

    async def learn(
        self, texts: Sequence[Text], said: dict[int, list[Candidates]] | None = None, draft: str = ""
    ) -> None:
        """Tell the clients the texts, what a draft said of them, and which model live clients run."""
        message = {
            "do": "learn",
            "texts": [text.as_json() for text in texts],
            "said": said or {},
            "draft": draft,
        }
        for child in self._clients:
            await child.write(message)
            await child.read(START_TIMEOUT)

    async def run(self, job: Job, sample: Sample | None = None) -> Outcome:
        """One load, shared among the processes of clients; `sample` is given each sample as it comes.

        Raises `UnavailableError` if a process ended.
        """
        parts = shares(job, min(len(self._clients), max(job.clients, job.idle)))
        clients = self._clients[: len(parts)]
        for child, part in zip(clients, parts, strict=True):
            await child.write({"do": "run", "job": part.as_json()})
        for child in clients:
            await child.read(START_TIMEOUT)
        await self.verifier.take()
        for child in clients:
            await child.write({"do": "go"})
        ends = await asyncio.gather(*(_to_the_end(child, sample) for child in clients))
        told = await self.verifier.take()
        return Outcome(
            runs=sorted(
                (run for end in ends for run in runs_from_json(end["runs"])), key=lambda run: run.opened_at
            ),
            began_at=min(end["began_at"] for end in ends),
            verifier=told,
            client_cpu=[end["cpu"] / end["wall"] if end["wall"] else 0.0 for end in ends],
            rests=[end["rest"] for end in ends],
        )


async def _to_the_end(child: Child, sample: Sample | None) -> dict[str, Any]:
    while (message := await child.read())["event"] != "done":
        if sample is not None:
            await sample(message)
    return message


def shares(job: Job, count: int) -> list[Job]:
    """The job in `count` parts, as equal as can be: texts, clients and idle sessions are dealt in turns."""
    dealt = [range(first, job.clients, count) for first in range(count)]
    return [
        replace(
            job,
            numbers=job.numbers[first::count] if job.duration is None else job.numbers,
            times=job.times[first::count],
            clients=len(dealt[first]),
            idle=len(range(first, job.idle, count)),
        )
        for first in range(count)
    ]
