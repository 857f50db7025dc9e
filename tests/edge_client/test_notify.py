"""What the service manager hears, on a real socket; and that a hanging drafter starves the watchdog."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.notify import Notifier, Watchdog, loop_ping, watchdog_interval

PATIENT = 60.0  # seconds; never waited for


class Manager:
    """Holds the socket that a service manager would."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        self.socket.settimeout(PATIENT)

    def heard(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")

    def is_quiet(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENT)
        return False


class Drafter:
    """A thread that does one thing after the other, as the draft worker does."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.num_pings = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    async def ping(self) -> None:
        self.num_pings += 1
        answer: Future[None] = Future()
        self.do(lambda: answer.set_result(None) if not answer.cancelled() else None)
        await asyncio.wrap_future(answer)

    def end(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


ABSTRACT = pytest.param("abstract", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only"))


@pytest.fixture(params=["path", ABSTRACT])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@forerun-test-{os.getpid()}"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    manager = Manager(address)
    yield manager
    manager.socket.close()


def test_the_manager_hears_each_state(manager: Manager, address: str) -> None:
    notifier = Notifier(address)
    notifier.ready("split, 127.0.0.1:50051")
    assert manager.heard() == ["READY=1", "STATUS=split, 127.0.0.1:50051"]
    notifier.status("two\nlines " + "x" * 500)
    (line,) = manager.heard()
    assert line.startswith("STATUS=two lines xxx")
    assert len(line) == len("STATUS=") + 200
    notifier.alive()
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.reloading()
    first, second = manager.heard()
    assert first == "RELOADING=1"
    assert re.fullmatch(r"MONOTONIC_USEC=\d+", second)
    notifier.stopping()
    assert manager.heard() == ["STOPPING=1"]
    notifier.status("")
    assert manager.is_quiet()


def test_without_a_manager_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    Notifier("").ready("x")
    assert not caplog.records


def test_a_manager_that_is_gone_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "none"))
    notifier.ready()
    notifier.alive()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_manager_that_does_not_read_is_not_waited_for(manager: Manager, address: str) -> None:
    notifier = Notifier(address)
    for _ in range(10_000):  # more than its queue holds
        notifier.alive()


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="must be a path or @NAME"):
        Notifier("vsock:2:1234")


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "7"}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
    ],
)
def test_the_interval_is_the_managers(environment: dict[str, str], interval: float | None) -> None:
    assert watchdog_interval(environment, 7) == interval


@pytest.fixture
def drafter() -> Iterator[Drafter]:
    drafter = Drafter()
    yield drafter
    drafter.end()


async def test_a_drafter_that_hangs_is_not_vouched_for(
    manager: Manager, address: str, drafter: Drafter
) -> None:
    notifier = Notifier(address)
    alive = Watchdog(notifier.alive, PATIENT, loop_ping, drafter.ping)
    assert await alive.look()
    assert manager.heard() == ["WATCHDOG=1"]

    hanging = threading.Event()

    def hang() -> None:
        hanging.wait()

    drafter.do(hang)
    impatient = Watchdog(notifier.alive, 0.04, loop_ping, drafter.ping)
    pings = drafter.num_pings
    assert not await impatient.look()
    assert not await impatient.look()
    assert drafter.num_pings == pings + 1  # it is not asked again before it has answered
    assert manager.is_quiet()

    hanging.set()
    impatient.interval = PATIENT
    assert await impatient.look()
    assert manager.heard() == ["WATCHDOG=1"]


async def test_a_loop_that_does_not_answer_is_not_vouched_for(drafter: Drafter) -> None:
    fed: list[bool] = []
    watchdog = Watchdog(lambda: fed.append(True), 0.04, asyncio.Event().wait, drafter.ping)
    assert not await watchdog.look()
    assert not fed


async def test_a_part_that_fails_is_not_vouched_for_until_it_works_again(drafter: Drafter) -> None:
    fed: list[bool] = []
    broken = True

    async def ping() -> None:
        if broken:
            raise ConnectionError("its thread is gone")

    watchdog = Watchdog(lambda: fed.append(True), PATIENT, loop_ping, ping)
    assert not await watchdog.look()
    broken = False
    assert await watchdog.look()
    assert fed == [True]


async def test_run_feeds_again_and_again_and_leaves_nothing_behind(drafter: Drafter) -> None:
    fed: asyncio.Queue[bool] = asyncio.Queue()
    watchdog = Watchdog(lambda: fed.put_nowait(True), 0.04, loop_ping, drafter.ping)
    running = asyncio.create_task(watchdog.run())
    for _ in range(3):
        assert await fed.get()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(asyncio.all_tasks()) == 1


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="must be above 0"):
        Watchdog(lambda: None, 0.0, loop_ping, loop_ping)
