"""`forerun edge status`, `stop` and `logs` beside a process that serves as the daemon will."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.process import run_file as daemon_file
from edge_client.process.paths import ensure_token
from edge_client.process.run_file import DaemonRecord, process_start, this_process
from forerun.cli import main
from tests import wording
from tests.support.small_server import Handler, serving

pytestmark = pytest.mark.api  # platformdirs, of the `edge` extra


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no systemctl
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    (tmp_path / "forerun").mkdir()
    return tmp_path / "forerun"


def own(listen: str, **more: str) -> DaemonRecord:
    return this_process(started_at=0.0, listen=listen, version="1.2.3", **more)


def status(request: Handler) -> None:
    assert request.path == "/v1/status"
    body = {
        "mode": "split",
        "page": True,
        "verifier": {"address": "v:1", "rtt_ms": 1.5},
        "seats": [1, 2],
        "fleet": {},
        "error": None,
        "all": [{"address": "v:1", "rtt": None}],
    }
    request.reply(200, json.dumps(body).encode(), Content_Type="application/json")


def test_without_a_daemon(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "status"]) == 3
    assert "forerun edge --draft" in capsys.readouterr().out
    assert main(["edge", "status", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"status": "stopped"}
    assert main(["edge", "stop"]) == 1
    assert main(["edge", "stop", "--json"]) == 1
    assert "not running" in capsys.readouterr().out


def test_a_running_daemon_tells_of_itself(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(status) as address:
        token = state / "token"
        ensure_token(token)
        daemon_file.write(state / "edge.pid", own(address, token_file=str(token)))
        assert main(["edge", "status", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["status"], told["listen"], told["version"]) == ("running", address, "1.2.3")
        assert told["api"]["mode"] == "split"
        assert told["token_file"] == str(token)
        assert main(["edge", "status"]) == 0
        words = capsys.readouterr().out
    assert words.startswith("running as process ")
    assert f"the token in {token}\n" in words
    assert f"\nthe page: http://{address}/#token=$(cat {token})\n" in words
    assert token.read_text().strip() not in words
    assert "  mode: split\n" in words
    assert "v:1" in words
    assert "None" not in words


def test_a_daemon_that_does_not_answer(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon_file.write(state / "edge.pid", own(f"unix:{state}/none"))
    assert main(["edge", "status", "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "unresponsive"
    assert "cannot be reached" in told["error"]
    assert main(["edge", "status"]) == 4
    assert "but it does not answer" in capsys.readouterr().out


def test_a_daemon_that_ended_badly(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon_file.write(state / "edge.pid", dataclasses.replace(own("h:1"), process_start="another boot:1"))
    assert main(["edge", "status", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "stale"
    assert main(["edge", "status"]) == 3
    words = capsys.readouterr().out
    assert "ended without saying so" in words
    assert "forerun edge --draft" in words
    assert main(["edge", "stop"]) == 1


def test_stop_ends_the_daemon(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = process_start(child.pid) or ""
        record = dataclasses.replace(own("h:1"), pid=child.pid, process_start=start)
        daemon_file.write(state / "edge.pid", record)
        assert main(["edge", "stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": True, "running": False, "pid": child.pid}


TAIL = shutil.which("tail") or ""


def test_logs_prints_the_end_of_the_file(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (state.parent / "tail").symlink_to(TAIL)
    assert main(["edge", "logs"]) == 2
    wording.keep(capfd.readouterr().err)
    (state / "edge.log").write_text("1\n2\n3\n")
    assert main(["edge", "logs", "-n", "2"]) == 0
    assert capfd.readouterr().out == "2\n3\n"
    other = state / "other.log"
    other.write_text("another\n")
    daemon_file.write(state / "edge.pid", own("h:1", log_file=str(other)))
    assert main(["edge", "logs"]) == 0
    assert capfd.readouterr().out == "another\n"


@pytest.mark.parametrize("word", ["active", "failed"])
def test_logs_asks_the_journal_where_systemd_runs_the_daemon(
    word: str, state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Programs of these names stand in for systemd's; they tell with what they were called."""
    for name, text in (("systemctl", f"echo {word}; exit 3"), ("journalctl", 'echo "$@"')):
        program = state.parent / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    assert main(["edge", "logs", "-n", "5"]) == 0
    assert main(["edge", "logs", "--system", "-f"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "--user --unit forerun-edge.service --lines 5 --output cat --no-pager",
        "--unit forerun-edge.service --lines 100 --output cat --follow",
    ]


def test_a_file_is_followed_by_its_name(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = state.parent / "tail"
    program.write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    program.chmod(0o755)
    (state / "edge.log").write_text("")
    assert main(["edge", "logs", "-f", "-n", "0"]) == 0
    assert capfd.readouterr().out == f"-n 0 -F {state / 'edge.log'} "
