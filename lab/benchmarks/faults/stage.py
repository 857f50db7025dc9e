"""Runs the processes, two verifiers behind links in this process and a daemon, and inflicts their faults."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from lab.benchmarks.daemon import DaemonProcess
from lab.benchmarks.faults.draws import NUM_SIDES, DrawnFault, Kind
from lab.benchmarks.processes import LoggedProcess, attempts, free_port
from lab.demo_models import TARGET_DIR
from lab.rig import VERIFIER, Processes
from simulator.proxy import Hold, Link, LinkDirection, both_ways
from training.demo_pair import DRAFT_GGUF

DRAIN_TIME = 2
"""Seconds that a verifier which drains waits for its sessions."""

FAR = 200.0
"""Milliseconds of round trip while a link is slow."""

SENT_AGAIN = 0.2, 0.8
"""Seconds, least and most, until TCP has sent a lost packet again: Linux' least timeout, doubled twice."""

BETWEEN_LOSSES = 0.15  # seconds on average
JUMP = 86_400.0  # seconds by which the clock is off at most

BROKER, PROGRAMS = "mosquitto", f"{os.defpath}:/usr/sbin:/usr/local/sbin"

CLOCKS = "/usr/lib/*/faketime/libfaketimeMT.so.1"
"""Library that shows a process another time of day (the package faketime)."""


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
class LinkFaults:
    """Inflicts the faults of a link that pass by themselves. The last that holds a toxic removes it."""

    link: Link
    held: Counter[str] = field(default_factory=Counter)

    async def inflict(self, fault: DrawnFault) -> None:
        """Inflict a fault until it is over."""
        match fault.kind:
            case Kind.LOSS:
                await self._lose(fault)
                return
            case Kind.BLACK_HOLE:
                change = self.hole
            case Kind.HALF_OPEN:
                change = self._half
            case Kind.LATENCY:
                change = self._slower
            case _:
                raise AssertionError(f"{fault.kind} is no fault of a link")
        change(1)
        await asyncio.sleep(fault.lasts)
        change(-1)

    def hole(self, by: int) -> None:
        """Let the link swallow everything, or end that fault."""
        self.held["hole"] += by
        if self.held["hole"] == 1 and by > 0:
            self.link.set_toxic(*both_ways(Hold()))
        elif not self.held["hole"]:
            for toxic in both_ways(Hold()):
                self.link.remove_toxic(toxic.name)

    def _half(self, by: int) -> None:
        """Let the link swallow all answers, or end that fault, and with it the connections."""
        self.held["half"] += by
        toxic = Hold(name="half", stream=LinkDirection.DOWNSTREAM)
        if self.held["half"] == 1 and by > 0:
            self.link.set_toxic(toxic)
        elif not self.held["half"]:
            self.link.cut()
            self.link.remove_toxic(toxic.name)

    async def _lose(self, fault: DrawnFault) -> None:
        """Lose packets for a while: the link stands still until each has been sent again."""
        random, ends_at = Random(fault.number), time.monotonic() + fault.lasts
        while time.monotonic() < ends_at:
            await asyncio.sleep(random.expovariate(1.0 / BETWEEN_LOSSES))
            self.hole(1)
            await asyncio.sleep(random.uniform(*SENT_AGAIN))
            self.hole(-1)

    def _slower(self, by: int) -> None:
        """Make the link slow, or end that fault."""
        self.held["slow"] += by
        self.link.rtt(FAR if self.held["slow"] else 0.0)


@dataclass(slots=True)
class Side:
    """Holds a verifier and its link."""

    child: LoggedProcess
    faults: LinkFaults
    port: int
    up: bool = False  # it listens

    async def until_listening(self) -> None:
        async for _ in attempts():
            self.child.check()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                continue
            writer.close()
            break
        self.up = True


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
        self._clock, self._broker_port = folder / "clock", free_port()
        self._broker: asyncio.subprocess.Process | None = None
        self._sides: list[Side] = []
        self._tasks = set[asyncio.Task[None]]()
        self._starting: asyncio.Task[None] | None = None  # the verifier that was ended last
        self._one_broker = asyncio.Lock()
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
            self._sides.append(Side(child, LinkFaults(link), port))
        await asyncio.gather(*(side.until_listening() for side in self._sides))
        behind = [word for side in self._sides for word in ("--verifier", str(side.faults.link.address))]
        how = ["--api-resume", "durable", "--service-stop-timeout", "1", "--log-level", "info", *self._draft]
        await self._start_broker()
        around = self._environment()
        daemon = DaemonProcess(self._folder, *behind, *how, environment=around)
        self._daemon = await self._stack.enter_async_context(daemon)
        self._stack.callback(lambda: [task.cancel() for task in self._tasks])

    @property
    def address(self) -> str:
        return self._daemon.address

    @property
    def lacking(self) -> tuple[Kind, ...]:
        """Kinds of faults that need a program which this machine lacks."""
        without = [] if glob.glob(CLOCKS) else [Kind.CLOCK]
        return (*without, *(() if shutil.which(BROKER, path=PROGRAMS) else (Kind.BROKER,)))

    def _environment(self) -> dict[str, str]:
        """Return the daemon's variables: a fleet, and a clock that a file sets."""
        around = dict[str, str]()
        if Kind.BROKER not in self.lacking:
            fleet = {"BROKER": f"mqtt://127.0.0.1:{self._broker_port}", "TENANT": "t", "DEVICE": "d"}
            fleet["TELEMETRY_INTERVAL"] = "1"
            around |= {f"FORERUN_EDGE_FLEET_{name}": value for name, value in fleet.items()}
        if Kind.CLOCK not in self.lacking:
            self._clock.write_text("+0")
            around |= {"LD_PRELOAD": glob.glob(CLOCKS)[0], "FAKETIME_TIMESTAMP_FILE": str(self._clock)}
            around |= {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        return around

    async def _start_broker(self) -> None:
        if Kind.BROKER in self.lacking:
            return
        program = shutil.which(BROKER, path=PROGRAMS) or BROKER
        none = asyncio.subprocess.DEVNULL
        self._broker = await asyncio.create_subprocess_exec(
            program, "-p", str(self._broker_port), stdout=none, stderr=none
        )
        self._stack.callback(_end, self._broker)

    async def _lose_broker(self, fault: DrawnFault) -> None:
        """Freeze the broker for a while, or kill it and start another one."""
        async with self._one_broker:
            broker = self._broker
            assert broker is not None, "not lacking"
            broker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.lasts)
            broker.send_signal(signal.SIGCONT)
            if fault.victim < 0.5:
                _end(broker)
                await broker.wait()
                await self._start_broker()

    async def inflict(self, fault: DrawnFault) -> None:
        """Begin a fault. At most one verifier is down at a time: one that starts is ended once more."""
        if self._failure is not None:
            raise self._failure
        side = self._sides[fault.side]
        match fault.kind:
            case Kind.RESET:
                side.faults.link.cut()
            case Kind.RESET_BOTH:
                for each in self._sides:
                    each.faults.link.cut()
            case Kind.CLOCK:
                self._clock.write_text(f"{JUMP * (2.0 * fault.victim - 1.0):+.0f}")
            case Kind.BROKER:
                self._go(self._lose_broker(fault))
            case Kind.FREEZE:
                awake = side if side.up else self._sides[1 - fault.side]
                awake.child.send(signal.SIGSTOP)
                self._later(fault.lasts, lambda: awake.child.send(signal.SIGCONT))
            case Kind.SLEEP:
                self._sleep(fault)
            case Kind.KILL | Kind.DRAIN:
                ended = next((each for each in self._sides if not each.up), side)
                ended.up = False
                ended.child.send(signal.SIGCONT)
                ended.child.send(signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
                if self._starting is not None:
                    self._starting.cancel()
                self._starting = self._go(self._again(ended))
            case Kind.DAEMON_KILL | Kind.DAEMON_STOP:
                daemon = self._daemon.child
                daemon.send(signal.SIGKILL if fault.kind is Kind.DAEMON_KILL else signal.SIGTERM)
                await daemon.gone()
                await daemon.spawn()
            case Kind.CLIENT_CUT:
                raise AssertionError("a client's own")
            case _:
                self._go(side.faults.inflict(fault))

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
            side.faults.hole(1)
        self._daemon.child.send(signal.SIGSTOP)

        def wake() -> None:
            for side in self._sides:
                side.faults.hole(-1)
                if fault.victim < 0.5:
                    side.faults.link.cut()
            self._daemon.child.send(signal.SIGCONT)

        self._later(fault.lasts, wake)

    async def _again(self, side: Side) -> None:
        """Start a verifier again when it has ended."""
        await side.child.gone()
        await side.child.spawn()
        await side.until_listening()

    def _later(self, seconds: float, call: Callable[[], Any]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            call()

        self._go(wait())

    def _go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()


def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
