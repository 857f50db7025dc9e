"""The record of a running daemon is believed for as long as its very process runs."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client import daemon_file
from edge_client.daemon_file import DaemonRecord, process_start, this_process


def own() -> DaemonRecord:
    return this_process(started_at=12.5, listen="127.0.0.1:8080", version="1.2.3", token_file="/t")


def test_what_is_written_is_read_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "edge.pid"
    daemon_file.write(path, own())
    assert daemon_file.read(path) == own()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["edge.pid"]


def test_no_file_is_no_daemon(tmp_path: Path) -> None:
    assert daemon_file.read(tmp_path / "none" / "edge.pid") is None


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


def test_two_processes_never_start_alike() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert process_start(child.pid) not in (None, process_start(os.getpid()))
        child.kill()
    assert process_start(child.pid) is None


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
    with pytest.raises(UserError, match=f"runs already, as process {os.getpid()} at 127.0.0.1:8080"):
        daemon_file.refuse_second(path)
    daemon_file.write(path, dataclasses.replace(own(), process_start="another boot:1"))
    daemon_file.refuse_second(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is damaged"),
        ("[]", "another version"),
        ('{"pid": 1}', "another version"),
        (json.dumps({**dataclasses.asdict(DaemonRecord(0, "a", 1.0, "b", "c"))}), "another version"),
    ],
)
def test_what_is_no_record_is_told(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "edge.pid").write_text(text)
    with pytest.raises(UserError, match=words):
        daemon_file.read(tmp_path / "edge.pid")


def test_a_record_of_a_newer_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "edge.pid").write_text(json.dumps({**dataclasses.asdict(own()), "more": 1}))
    assert daemon_file.read(tmp_path / "edge.pid") == own()


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        daemon_file.write(tmp_path / "none" / "edge.pid", own())
