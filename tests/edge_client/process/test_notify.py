"""What the service manager hears, on a real socket; and that a hanging drafter starves the watchdog."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.process.notify import Notifier, ServiceWatchdog, watchdog_interval
from tests import wording

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
    notifier.ready("two\nlines " + "x" * 500)
    _, line = manager.heard()
    assert line.startswith("STATUS=two lines xxx")
    assert len(line) == len("STATUS=") + 200
    notifier.alive()
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.stopping()
    assert manager.heard() == ["STOPPING=1"]


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
    with wording.raises(UserError):
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


async def test_a_drafter_that_hangs_is_not_vouched_for(manager: Manager, address: str) -> None:
    answers, num_asked = asyncio.Event(), 0

    async def ping() -> None:
        nonlocal num_asked
        num_asked += 1
        await answers.wait()

    watchdog = ServiceWatchdog(Notifier(address).alive, 0.04, ping)
    assert not await watchdog.look()
    assert not await watchdog.look()
    assert num_asked == 1, "it is not asked again before it has answered"
    assert manager.is_quiet()
    answers.set()
    watchdog.interval = PATIENT
    assert await watchdog.look()
    assert manager.heard() == ["WATCHDOG=1"]


async def test_run_feeds_again_and_again_and_leaves_nothing_behind() -> None:
    fed: asyncio.Queue[bool] = asyncio.Queue()
    watchdog = ServiceWatchdog(lambda: fed.put_nowait(True), 0.04, lambda: asyncio.sleep(0))
    running = asyncio.create_task(watchdog.run())
    for _ in range(3):
        assert await fed.get()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(asyncio.all_tasks()) == 1
