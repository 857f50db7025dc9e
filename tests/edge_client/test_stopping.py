"""Stopping ends the recorded process and no other."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edge_client.daemon_file import DaemonRecord, process_start
from edge_client.stopping import stop

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); input()"
GENTLE = "print('up', flush=True); input()"


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def record(process: subprocess.Popen[str]) -> DaemonRecord:
    return DaemonRecord(process.pid, process_start(process.pid) or "", 0.0, "127.0.0.1:1", "1")


@pytest.mark.parametrize("child", [GENTLE], indirect=True)
def test_a_process_is_ended_and_waited_for(child: subprocess.Popen[str]) -> None:
    assert stop(record(child), 30.0)
    assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize("child", [STUBBORN], indirect=True)
def test_one_that_does_not_listen_is_left_running_unless_by_force(child: subprocess.Popen[str]) -> None:
    found = record(child)
    assert not stop(found, 0.05)
    assert child.poll() is None
    assert stop(found, 30.0, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("child", [GENTLE], indirect=True)
def test_a_process_that_has_the_number_by_now_is_spared(child: subprocess.Popen[str]) -> None:
    assert stop(dataclasses.replace(record(child), process_start="another boot:1"), 30.0)
    assert child.poll() is None


@pytest.mark.parametrize("child", [GENTLE], indirect=True)
def test_one_that_has_ended_is_stopped(child: subprocess.Popen[str]) -> None:
    found = record(child)
    child.kill()
    child.wait()
    assert stop(found, 30.0)
