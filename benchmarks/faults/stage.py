"""The processes: two verifiers behind links in this process, and a daemon; and what is done to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.faults.draws import NUM_SIDES, Fault, Kind
from benchmarks.http_stream import BrokenError, HttpClient
from benchmarks.ports import free_port
from benchmarks.programs import Program, attempts, own_places
from demo_models import DRAFT_GGUF, TARGET_DIR
from link import Link, Timeout, both_ways

logger = logging.getLogger(__name__)

DRAIN_TIME = 2
"""Seconds that a verifier which drains waits for its sessions."""

FAR = 200.0
"""Milliseconds of round trip while a link is slow."""


class Stage(Protocol):
    """What faults are done to."""

    @property
    def address(self) -> str:
        """Of the daemon's API, HOST:PORT."""
        ...

    @property
    def token(self) -> str:
        """Of its API; empty where it asks for none."""
        ...

    async def inflict(self, fault: Fault) -> None:
        """Begin it. What passes by itself, or is started again, does so in the background."""
        ...

    async def settle(self) -> None:
        """Wait until everything is whole again."""
        ...


@dataclass(frozen=True, slots=True)
class StageSettings:
    """Of the processes."""

    folder: Path  # for logs and the daemon's own places
    step_floor_ms: float = 15.0
    deterministic: bool = True
    policy: str = "adaptive"
    fallback: str = "wait"
    more: tuple[str, ...] = ()  # flags of the daemon


@dataclass(slots=True)
class Hold:
    """A toxic that several faults may hold on a link; it goes with the last of them."""

    count: int = 0


@dataclass(slots=True)
class Side:
    """A verifier and the link to it."""

    program: Program
    link: Link
    port: int
    up: asyncio.Event = field(default_factory=asyncio.Event)
    black: Hold = field(default_factory=Hold)
    slow: Hold = field(default_factory=Hold)

    def hole(self, by: int) -> None:
        self.black.count += by
        if self.black.count == 1 and by > 0:
            self.link.set_toxic(*both_ways(Timeout(0)))
        elif not self.black.count:
            for toxic in both_ways(Timeout(0)):
                self.link.remove_toxic(toxic.name)

    def slower(self, by: int) -> None:
        self.slow.count += by
        self.link.rtt(FAR if self.slow.count else 0.0)


class Processes:
    """A `Stage` of real processes. An async context manager."""

    def __init__(self, settings: StageSettings) -> None:
        self.settings = settings
        self.token = ""
        self.sides: list[Side] = []
        self._port = free_port()
        self._stack = contextlib.AsyncExitStack()
        self._tasks = set[asyncio.Task[None]]()
        self._one_down = asyncio.Lock()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Processes:
        try:
            for number in range(NUM_SIDES):
                self.sides.append(await self._side(number))
            await asyncio.gather(*(self._until_listening(side) for side in self.sides))
            self.daemon = Program(
                "daemon", self._log("daemon"), own_places(self.settings.folder), *self._daemon_arguments()
            )
            self._stack.push_async_callback(self.daemon.close)
            await self.daemon.start()
            await self.until_ready()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    @property
    def address(self) -> str:
        """See `Stage`."""
        return f"127.0.0.1:{self._port}"

    # Faults -----------------------------------------------------------------------------------------------

    async def inflict(self, fault: Fault) -> None:
        """See `Stage`. At most one verifier is down at a time: a fault waits for the one before it."""
        if self._failure is not None:
            raise self._failure
        side = self.sides[fault.side]
        match fault.kind:
            case Kind.RESET:
                side.link.cut()
            case Kind.RESET_BOTH:
                for each in self.sides:
                    each.link.cut()
            case Kind.BLACK_HOLE:
                side.hole(1)
                self._later(fault.lasts, lambda: side.hole(-1))
            case Kind.LATENCY:
                side.slower(1)
                self._later(fault.lasts, lambda: side.slower(-1))
            case Kind.FREEZE:
                await side.up.wait()
                side.program.send(signal.SIGSTOP)
                self._later(fault.lasts, lambda: side.program.send(signal.SIGCONT))
            case Kind.SLEEP:
                self._sleep(fault)
            case Kind.KILL | Kind.DRAIN:
                await self._one_down.acquire()
                await side.up.wait()
                self._end(side, signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
            case Kind.DAEMON_KILL | Kind.DAEMON_STOP:
                self.daemon.send(signal.SIGKILL if fault.kind is Kind.DAEMON_KILL else signal.SIGTERM)
                await self.daemon.gone()
                await self.daemon.start()
            case Kind.CLIENT_CUT:
                raise AssertionError("a client's own")

    async def settle(self) -> None:
        """See `Stage`."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._failure is not None:
            raise self._failure
        await self.until_ready()

    def _sleep(self, fault: Fault) -> None:
        """As a laptop does: what is sent to it meanwhile is gone for good. Half the time its peers, or a
        router between, have forgotten its connections when it wakes and say so."""
        for side in self.sides:
            side.hole(1)
        self.daemon.send(signal.SIGSTOP)

        def wake() -> None:
            for side in self.sides:
                side.hole(-1)
                if fault.victim < 0.5:
                    side.link.cut()
            self.daemon.send(signal.SIGCONT)

        self._later(fault.lasts, wake)

    def _end(self, side: Side, number: signal.Signals) -> None:
        """End a verifier now; it is started again in the background."""
        side.up.clear()
        side.program.send(signal.SIGCONT)
        side.program.send(number)
        self._go(self._again(side))

    async def _again(self, side: Side) -> None:
        try:
            await side.program.gone()
            await side.program.start()
            await self._until_listening(side)
        except BaseException:
            side.up.set()  # whoever waits for it learns of the failure
            raise
        finally:
            self._one_down.release()

    def _later(self, seconds: float, call: Any) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            call()

        self._go(wait())

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    # Processes --------------------------------------------------------------------------------------------

    async def _side(self, number: int) -> Side:
        port = free_port()
        settings = self.settings
        exact = ["--deterministic"] if settings.deterministic else []
        program = Program(
            f"verifier {number}", self._log(f"verifier{number}"), {},
            "verify", "--model", str(TARGET_DIR), "--listen", f"127.0.0.1:{port}", "--threads", "1",
            "--step-floor", str(settings.step_floor_ms), "--grace", str(DRAIN_TIME), *exact,
        )  # fmt: skip
        self._stack.push_async_callback(program.close)
        await program.start()
        link = await self._stack.enter_async_context(Link.to(f"127.0.0.1:{port}", seed=number))
        return Side(program, link, port)

    def _daemon_arguments(self) -> list[str]:
        settings = self.settings
        verifiers = [word for side in self.sides for word in ("--verifier", str(side.link.address))]
        return [
            "edge", *verifiers, "--draft", str(DRAFT_GGUF), "--policy", settings.policy, "--threads", "1",
            "--fallback", settings.fallback, "--listen", self.address, "--no-api-auth",
            "--api-resume", "durable", "--service-stop-timeout", "1", "--log-level", "info", *settings.more,
        ]  # fmt: skip

    def _log(self, name: str) -> Path:
        return self.settings.folder / f"{name}.log"

    async def _until_listening(self, side: Side) -> None:
        async for _ in attempts():
            side.program.check()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", side.port)
            except OSError:
                continue
            writer.close()
            break
        side.up.set()

    async def until_ready(self) -> None:
        """The daemon answers, and so do all verifiers."""
        async for _ in attempts():
            self.daemon.check()
            with contextlib.suppress(BrokenError):
                async with HttpClient(self.address) as http:
                    await http.ask("GET", "/v1/status")
                    status = await http.json()
                if all(each["health"] == "ready" for each in status["verifiers"]):
                    return
