"""The record of a running daemon is believed for as long as its very process runs."""

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.process import run_file as daemon_file
from edge_client.process.run_file import DaemonRecord, process_start, stop, this_process
from tests import wording


def own() -> DaemonRecord:
    return this_process(started_at=12.5, listen="127.0.0.1:8080", version="1.2.3", token_file="/t")


def test_what_is_written_is_read_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "edge.pid"
    daemon_file.write(path, own())
    assert daemon_file.read(path) == own()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["edge.pid"]


def test_an_ended_process_is_no_daemon(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = process_start(child.pid)
        assert start is not None
        record = dataclasses.replace(own(), pid=child.pid, process_start=start)
        daemon_file.write(tmp_path / "edge.pid", record)
        assert daemon_file.read(tmp_path / "edge.pid") == record
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet buried by its parent
        assert daemon_file.read(tmp_path / "edge.pid") is None
    assert daemon_file.read(tmp_path / "edge.pid") is None
    assert daemon_file.read_any(tmp_path / "edge.pid") == record


def test_another_process_with_the_same_number_is_no_daemon(tmp_path: Path) -> None:
    record = dataclasses.replace(own(), process_start="another boot:1")
    daemon_file.write(tmp_path / "edge.pid", record)
    assert daemon_file.read(tmp_path / "edge.pid") is None


def test_a_daemon_removes_its_own_file_only(tmp_path: Path) -> None:
    path = tmp_path / "edge.pid"
    daemon_file.write(path, own())
    daemon_file.remove(path, dataclasses.replace(own(), pid=1))
    assert path.exists()
    daemon_file.remove(path, own())
    assert not path.exists()
    daemon_file.remove(path, own())


def test_a_second_daemon_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    path = tmp_path / "edge.pid"
    daemon_file.refuse_second(path)
    daemon_file.write(path, own())
    with wording.raises(UserError):
        daemon_file.refuse_second(path)
    daemon_file.write(path, dataclasses.replace(own(), process_start="another boot:1"))
    daemon_file.refuse_second(path)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"pid": 1}', json.dumps({**dataclasses.asdict(DaemonRecord(0, "a", 1.0, "b", "c"))})]
)
def test_what_is_no_record_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "edge.pid").write_text(text)
    with wording.raises(UserError):
        daemon_file.read(tmp_path / "edge.pid")


def test_a_record_of_a_newer_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "edge.pid").write_text(json.dumps({**dataclasses.asdict(own()), "more": 1}))
    assert daemon_file.read(tmp_path / "edge.pid") == own()


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
