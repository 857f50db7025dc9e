"""Texts and faults at once: references first, then clients that read while things break."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.faults.clients import Client
from benchmarks.faults.draws import Fault, Job, Kind, draw_fault
from benchmarks.faults.reading import Told, Violation, compare
from benchmarks.faults.recovery import Board
from benchmarks.faults.stage import Stage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Of one run."""

    faults: int = 1000
    seed: int = 1
    first: int = 1  # fault to begin with
    clients: int = 6
    mean_gap: float = 1.0  # seconds between faults
    weights: dict[Kind, float] | None = None


@dataclass(slots=True)
class Result:
    """What a run found. `violation` is empty if every text was right."""

    settings: RunSettings
    faults: int = 0
    texts: int = 0
    tokens: int = 0
    taken_up: int = 0  # connections after a text's first
    texts_taken_up: int = 0
    seconds: float = 0.0
    violation: str = ""
    at_fault: int = 0  # the newest when the violation was seen
    recovery: dict[str, Any] = field(default_factory=dict)


async def run(
    stage: Stage,
    jobs: tuple[Job, ...],
    settings: RunSettings,
    tell: Callable[[str], None] = lambda line: None,
) -> Result:
    """Write every job without faults, then again and again while faults come. Ends early with the first
    violation."""
    return await _Run(stage, jobs, settings, tell).run()


class _Run:
    def __init__(
        self, stage: Stage, jobs: tuple[Job, ...], settings: RunSettings, tell: Callable[[str], None]
    ) -> None:
        self._stage, self._jobs, self._settings, self._tell = stage, jobs, settings, tell
        self._board = Board()
        self._clients = [Client(stage.address, stage.token, self._heard) for _ in range(settings.clients)]
        self._references: dict[int, Told] = {}
        self._over = asyncio.Event()
        self._result = Result(settings)

    async def run(self) -> Result:
        await self._in_parallel(iter(self._jobs), self._refer)
        self._tell(f"{len(self._jobs)} texts written without faults")
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._break())
                for client in self._clients:
                    group.create_task(self._keep_reading(client))
        except* Violation as errors:
            self._result.violation = "; ".join(str(each) for each in errors.exceptions)
            self._result.at_fault = self._settings.first + self._result.faults - 1
        self._result.seconds = round(time.monotonic() - began, 1)
        self._result.recovery = self._board.report()
        return self._result

    # Texts ------------------------------------------------------------------------------------------------

    async def _in_parallel(self, jobs: Iterator[Job], work: Any) -> None:
        async def one(client: Client) -> None:
            for job in jobs:
                await work(client, job)

        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(one(client))

    async def _refer(self, client: Client, job: Job) -> None:
        name = f"reference-{self._settings.seed}-{job.number}"
        reading = await client.stream(name, job)
        self._references[job.number] = reading.told()
        compare(reading, await client.again(name), reading.told())

    async def _keep_reading(self, client: Client) -> None:
        """One text after the other until no fault is left."""
        place = self._clients.index(client)
        random = Random(f"{self._settings.seed}/client/{place}/{self._settings.first}")
        for number in itertools.count(1):
            if self._over.is_set():
                return
            job = random.choice(self._jobs)
            name = f"text-{place}-{number}"
            reading = await client.stream(name, job)
            self._heard(name)
            compare(reading, await client.again(name), self._references[job.number])
            self._result.texts += 1
            self._result.tokens += reading.told().num_tokens
            self._result.taken_up += reading.num_connections - 1
            self._result.texts_taken_up += reading.num_connections > 1

    def _heard(self, name: str) -> None:
        self._board.heard(name, time.monotonic())

    # Faults -----------------------------------------------------------------------------------------------

    async def _break(self) -> None:
        settings = self._settings
        for number in range(settings.first, settings.faults + 1):
            fault = draw_fault(settings.seed, number, settings.mean_gap, settings.weights)
            await asyncio.sleep(fault.after)
            await self._strike(fault)
            self._result.faults += 1
            self._tell(f"fault {number}: {fault.kind.value}, {self._result.texts} texts compared")
        await self._stage.settle()
        self._over.set()

    async def _strike(self, fault: Fault) -> None:
        running = [client for client in self._clients if client.reading is not None]
        if fault.kind is Kind.CLIENT_CUT:
            running = running[int(fault.victim * len(running)) :][:1]
            for client in running:
                client.cut()
            self._watch(fault, running)
            return
        began = asyncio.create_task(self._stage.inflict(fault))
        await asyncio.sleep(0)
        self._watch(fault, running)
        await began

    def _watch(self, fault: Fault, clients: list[Client]) -> None:
        names = [client.reading.name for client in clients if client.reading is not None]
        self._board.struck(fault, names, time.monotonic())
