"""Runs texts and faults at once: references first, then clients that read while faults strike."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

from lab.benchmarks.daemon import Reading, Told, Violation
from lab.benchmarks.faults.draws import DrawnFault, FaultJob, Kind, draw_fault
from lab.benchmarks.faults.stage import FaultStage
from lab.benchmarks.http_stream import BrokenError, HttpAnswer, HttpClient
from lab.benchmarks.stream_forms import FORMS
from simulator.figures import percentile

PAUSE = 0.05
"""Seconds before a client whose connection broke comes back."""

PATIENCE = 240.0
"""Seconds without any byte, reconnects included, after which a text counts as lost: on a busy machine a
verifier takes a minute to start."""


class Client:
    """Asks the daemon at `address`. `on_text` is called with a stream's name on each new text."""

    def __init__(self, address: str, on_text: Callable[[str], None]) -> None:
        self.reading: Reading | None = None  # the text that it streams now
        self._address = address
        self._on_text = on_text
        self._http: HttpClient | None = None

    def cut(self) -> None:
        """Break the client's connection."""
        if self._http is not None:
            self._http.cut()

    async def stream(self, name: str, job: FaultJob) -> Reading:
        """Read a text from request to end. Raises `Violation` if it is lost, doubled or out of order."""
        reading = self.reading = Reading(name, FORMS[job.path])
        heard_at = time.monotonic()
        while not reading.done:
            before = len(reading.data)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._connection(reading, job)
            except BrokenError:
                await asyncio.sleep(PAUSE)
            except TimeoutError as error:
                raise Violation(f"{name}: a connection stayed open for {PATIENCE:g} s") from error
            now = time.monotonic()
            heard_at = now if len(reading.data) > before else heard_at
            if now - heard_at > PATIENCE:
                raise Violation(f"{name}: nothing came for {PATIENCE:g} s")
        self.reading = None
        return reading

    async def again(self, name: str) -> bytes:
        """Read an ended stream again from its beginning, then delete it."""
        path = f"/v1/stream?conv_id={quote(name)}"
        answer, content = await self._ask("GET", f"{path}&from=0")
        if answer.status != 200:
            raise Violation(f"{name}: cannot be read again: {answer.status} {content[:200]!r}")
        await self._ask("DELETE", path)  # again if its answer is lost, and then there is no such stream
        return content

    async def _ask(self, method: str, path: str) -> tuple[HttpAnswer, bytes]:
        """Ask until an answer comes; return it with its content, if the method has any."""
        while True:
            try:
                async with HttpClient(self._address) as http:
                    answer = await http.ask(method, path)
                    return answer, await http.body() if method == "GET" else b""
            except BrokenError:
                await asyncio.sleep(PAUSE)

    async def _connection(self, reading: Reading, job: FaultJob) -> None:
        """One, for as long as it lasts. A request that was lost may have begun the text, so before it is sent
        again the client looks."""
        async with HttpClient(self._address) as self._http:
            http = self._http
            reading.num_connections += 1
            if reading.num_connections > 1:
                answer = await http.ask(
                    "GET", f"/v1/stream?conv_id={quote(reading.name)}&from={len(reading.data)}"
                )
                if await self._is_new(reading, answer, http):
                    reading.num_connections = 0
                    return
            else:
                answer = await http.ask("POST", job.path, job.body, {"x-conversation-id": reading.name})
            await self._read(reading, answer, http)

    async def _is_new(self, reading: Reading, answer: HttpAnswer, http: HttpClient) -> bool:
        """Whether the text had not begun. Raises `Violation` if it had."""
        if answer.status != 404:
            return False
        if reading.data:
            said = await http.body()
            raise Violation(f"{reading.name}: lost after {len(reading.data)} bytes: {said[:200]!r}")
        return True

    async def _read(self, reading: Reading, answer: HttpAnswer, http: HttpClient) -> None:
        if answer.status in (409, 429, 503):  # 409: the first request came after the look for its text
            raise BrokenError("busy")
        if answer.status != 200:
            said = await http.body()
            raise Violation(f"{reading.name}: was answered {answer.status} {said[:300]!r}")
        async for chunk in http.chunks():
            if reading.feed(chunk):
                self._on_text(reading.name)
        if not reading.done:
            raise BrokenError("the daemon ended in good order")


def compare(reading: Reading, again: bytes, reference: Told, exact: bool = True) -> bool:
    """Raise `Violation` unless the stream, read again from its beginning, equals its client's copy, and its
    content equals the content without faults.

    Without `exact` rounding may change the content, and the result says whether it is equal.
    """
    own = bytes(reading.data)
    if own != again:
        raise Violation(f"{reading.name}: read again from 0 it is another stream; {_first(own, again)}")
    told = reading.told()
    for name in ("text", "num_tokens", "tokens", "finish", "usage"):
        value, expected = getattr(told, name), getattr(reference, name)
        if value != expected and not exact:
            return False
        if value != expected:
            where = _first(value, expected) if isinstance(value, str | tuple) else f"{value} != {expected}"
            raise Violation(f"{reading.name}: its {name} differs from the one without faults; {where}")
    return True


def _first(value: Any, expected: Any) -> str:
    """Where two sequences begin to differ."""
    pairs = enumerate(zip(value, expected, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(value), len(expected)))
    there = slice(max(0, at - 40), at + 80)
    return (
        f"from {at} of {len(value)} and {len(expected)} on: {value[there]!r} in place of {expected[there]!r}"
    )


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Holds the settings of a run."""

    faults: int = 1000
    seed: int = 1
    first: int = 1  # fault to begin with
    clients: int = 6
    mean_gap: float = 1.0  # seconds between faults
    weights: dict[Kind, float] | None = None
    exact: bool = True  # the verifiers are deterministic, so that a text that differs is a violation


@dataclass(slots=True)
class Result:
    """Holds a run's result. `violation` is empty if every text was right."""

    settings: RunSettings
    faults: int = 0
    texts: int = 0
    tokens: int = 0
    taken_up: int = 0  # connections after a text's first
    texts_taken_up: int = 0
    texts_rounded: int = 0  # that differ, by verifiers that are not deterministic
    seconds: float = 0.0
    violation: str = ""
    at_fault: int = 0  # the newest when the violation was seen
    recovery: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Watch:
    """Watches a fault until the texts that ran have resumed or ended. Times in seconds, monotonic."""

    kind: Kind
    at: float
    waiting: set[str]  # texts that have not
    took: float | None = None


@dataclass(slots=True)
class Board:
    """Records how long texts stood still: from each fault until new text of every text that ran then."""

    watches: list[Watch] = field(default_factory=list)

    def struck(self, kind: Kind, names: Iterable[str], now: float) -> None:
        """Note the begin of a fault that affects these texts."""
        self.watches.append(Watch(kind, now, set(names)))

    def heard(self, name: str, now: float) -> None:
        """Note new text of `name`, or its end."""
        for watch in self.watches:
            if name in watch.waiting:
                watch.waiting.discard(name)
                watch.took = None if watch.waiting else round(now - watch.at, 4)

    def report(self) -> dict[str, dict[str, float | int | None]]:
        """Report by kind: number of faults; median, 95th percentile and maximum of recoveries, seconds."""
        by_kind: dict[str, dict[str, float | int | None]] = {}
        for kind in Kind:
            own = [watch for watch in self.watches if watch.kind is kind]
            times = [watch.took for watch in own if watch.took is not None]
            if own:
                by_kind[kind.value] = {
                    "faults": len(own),
                    "texts_affected": len(times),
                    "p50_s": percentile(times, 50),
                    "p95_s": percentile(times, 95),
                    "longest_s": percentile(times, 100),
                }
        return by_kind


async def run(
    stage: FaultStage,
    jobs: tuple[FaultJob, ...],
    settings: RunSettings,
    tell: Callable[[str], None] = lambda line: None,
) -> Result:
    """Write every job without faults, then repeatedly while faults strike. Ends early with the first
    violation."""
    return await _Run(stage, jobs, settings, tell).run()


class _Run:
    def __init__(
        self,
        stage: FaultStage,
        jobs: tuple[FaultJob, ...],
        settings: RunSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._stage, self._jobs, self._settings, self._tell = stage, jobs, settings, tell
        self._board = Board()
        self._clients = [Client(stage.address, self._heard) for _ in range(settings.clients)]
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

    async def _in_parallel(self, jobs: Iterator[FaultJob], work: Any) -> None:
        async def one(client: Client) -> None:
            for job in jobs:
                await work(client, job)

        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(one(client))

    async def _refer(self, client: Client, job: FaultJob) -> None:
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
            reference, exact = self._references[job.number], self._settings.exact
            is_equal = compare(reading, await client.again(name), reference, exact)
            self._result.texts_rounded += not is_equal
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

    async def _strike(self, fault: DrawnFault) -> None:
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

    def _watch(self, fault: DrawnFault, clients: list[Client]) -> None:
        names = [client.reading.name for client in clients if client.reading is not None]
        self._board.struck(fault.kind, names, time.monotonic())
