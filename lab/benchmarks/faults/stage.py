"""Runs the processes, two verifiers behind links in this process and a daemon, and inflicts their faults."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from forerun.demo_pair import DRAFT_GGUF
from lab.benchmarks.daemon import DaemonProcess
from lab.benchmarks.faults.draws import NUM_SIDES, DrawnFault, Kind
from lab.benchmarks.processes import LoggedProcess, attempts, free_port
from lab.demo_models import TARGET_DIR
from lab.rig import VERIFIER, Processes
from simulator.proxy import Hold, Link, both_ways

DRAIN_TIME = 2
"""Seconds that a verifier which drains waits for its sessions."""

FAR = 200.0
"""Milliseconds of round trip while a link is slow."""


class FaultStage(Protocol):
    """Holds the processes that a run reads from and that faults hit."""

    @property
    def address(self) -> str:
        """Return HOST:PORT of the daemon's API, which asks for no token."""

    async def inflict(self, fault: DrawnFault) -> None:
        """Begin a fault. Faults that pass by themselves, and restarts, do so in the background."""

    async def settle(self) -> None:
        """Wait until everything is whole again."""


@dataclass(slots=True)
class Side:
    """Holds a verifier and its link. Several faults may hold a toxic; the last of them removes it."""

    child: LoggedProcess
    link: Link
    port: int
    up: asyncio.Event = field(default_factory=asyncio.Event)
    held: Counter[str] = field(default_factory=Counter)

    def hole(self, by: int) -> None:
        """Let the link swallow everything, or end that fault."""
        self.held["hole"] += by
        if self.held["hole"] == 1 and by > 0:
            self.link.set_toxic(*both_ways(Hold()))
        elif not self.held["hole"]:
            for toxic in both_ways(Hold()):
                self.link.remove_toxic(toxic.name)

    def slower(self, by: int) -> None:
        """Make the link slow, or end that fault."""
        self.held["slow"] += by
        self.link.rtt(FAR if self.held["slow"] else 0.0)

    async def until_listening(self) -> None:
        async for _ in attempts():
            self.child.check()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                continue
            writer.close()
            break
        self.up.set()


class RealStage(Processes):
    """Implements `FaultStage` by real processes, with logs and the daemon's own places in `folder`."""

    def __init__(
        self,
        folder: Path,
        step_floor_ms: float = 15.0,
        deterministic: bool = True,
        target: str = str(TARGET_DIR),
        draft: str = str(DRAFT_GGUF),
    ) -> None:
        super().__init__(pin=False)
        self._folder = folder
        exact = ["--deterministic"] if deterministic else []
        self._verify = ["--model", target, "--threads", "1", "--grace", str(DRAIN_TIME)]
        self._verify += ["--step-floor", str(step_floor_ms), *exact]
        self._draft = ["--draft", draft]
        self._sides: list[Side] = []
        self._tasks = set[asyncio.Task[None]]()
        self._one_down = asyncio.Lock()
        self._failure: BaseException | None = None

    async def _begin(self) -> None:
        for number in range(NUM_SIDES):
            port, log = free_port(), self._folder / f"verifier{number}.log"
            listen = f"127.0.0.1:{port}"
            child = LoggedProcess(
                f"verifier {number}", *self._verify, "--listen", listen, log=log, module=VERIFIER
            )
            self._stack.push_async_callback(child.close)
            await child.spawn()
            link = await self._stack.enter_async_context(Link.to(listen, seed=number))
            self._sides.append(Side(child, link, port))
        await asyncio.gather(*(side.until_listening() for side in self._sides))
        behind = [word for side in self._sides for word in ("--verifier", str(side.link.address))]
        how = ["--api-resume", "durable", "--service-stop-timeout", "1", "--log-level", "info", *self._draft]
        self._daemon = await self._stack.enter_async_context(DaemonProcess(self._folder, *behind, *how))
        self._stack.callback(lambda: [task.cancel() for task in self._tasks])

    @property
    def address(self) -> str:
        return self._daemon.address

    async def inflict(self, fault: DrawnFault) -> None:
        """Begin a fault. At most one verifier is down at a time: a fault waits for the one before it."""
        if self._failure is not None:
            raise self._failure
        side = self._sides[fault.side]
        match fault.kind:
            case Kind.RESET:
                side.link.cut()
            case Kind.RESET_BOTH:
                for each in self._sides:
                    each.link.cut()
            case Kind.BLACK_HOLE:
                side.hole(1)
                self._later(fault.lasts, lambda: side.hole(-1))
            case Kind.LATENCY:
                side.slower(1)
                self._later(fault.lasts, lambda: side.slower(-1))
            case Kind.FREEZE:
                await side.up.wait()
                side.child.send(signal.SIGSTOP)
                self._later(fault.lasts, lambda: side.child.send(signal.SIGCONT))
            case Kind.SLEEP:
                self._sleep(fault)
            case Kind.KILL | Kind.DRAIN:
                await self._one_down.acquire()
                await side.up.wait()
                side.up.clear()
                side.child.send(signal.SIGCONT)
                side.child.send(signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
                self._go(self._again(side))
            case Kind.DAEMON_KILL | Kind.DAEMON_STOP:
                daemon = self._daemon.child
                daemon.send(signal.SIGKILL if fault.kind is Kind.DAEMON_KILL else signal.SIGTERM)
                await daemon.gone()
                await daemon.spawn()
            case Kind.CLIENT_CUT:
                raise AssertionError("a client's own")

    async def settle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._failure is not None:
            raise self._failure
        await self._daemon.until_ready()

    def _sleep(self, fault: DrawnFault) -> None:
        """Sleep as a laptop does: messages to it are lost. Half the time its connections are reset when it
        wakes, as by peers or a router that have forgotten them."""
        for side in self._sides:
            side.hole(1)
        self._daemon.child.send(signal.SIGSTOP)

        def wake() -> None:
            for side in self._sides:
                side.hole(-1)
                if fault.victim < 0.5:
                    side.link.cut()
            self._daemon.child.send(signal.SIGCONT)

        self._later(fault.lasts, wake)

    async def _again(self, side: Side) -> None:
        """Start a verifier again when it has ended."""
        try:
            await side.child.gone()
            await side.child.spawn()
            await side.until_listening()
        except BaseException:
            side.up.set()  # whoever waits for it learns of the failure
            raise
        finally:
            self._one_down.release()

    def _later(self, seconds: float, call: Callable[[], Any]) -> None:
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
