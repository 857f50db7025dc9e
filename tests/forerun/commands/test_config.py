"""`forerun edge config`, as a person and as a program calls it."""

import json
import stat
import tomllib
from pathlib import Path

import pytest

from forerun.cli import main
from tests import wording

pytestmark = pytest.mark.api  # platformdirs, of the `edge` extra


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


def test_init_writes_a_file_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "config" / "forerun" / "edge.toml"
    assert main(["edge", "config", "init"]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("[draft]\nseats = 3\n")
    assert main(["edge", "config", "init"]) == 2
    wording.keep(capsys.readouterr().err)
    assert file.read_text() == "[draft]\nseats = 3\n"


def test_show_tells_what_holds_and_why(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "config" / "forerun" / "edge.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[draft]\nseats = 3\ncontext = 1\n")
    monkeypatch.setenv("FORERUN_EDGE_DRAFT_CONTEXT", "2")
    assert main(["edge", "config", "show", "--origin", "--threads", "5"]) == 0
    out = capsys.readouterr().out
    assert f"seats = 3  # {file}:2" in out
    assert "context = 2  # FORERUN_EDGE_DRAFT_CONTEXT" in out
    assert "threads = 5  # --threads" in out
    assert tomllib.loads(out)["draft"]["threads"] == 5
    assert main(["edge", "config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"]["seats"] == 3


def test_config_replaces_the_usual_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = home / "config" / "forerun" / "edge.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text("not TOML")
    other = home / "other.toml"
    other.write_text("[draft]\nseats = 4\n")
    assert main(["edge", "config", "show", "--config", str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"]["seats"] == 4
    assert main(["edge", "config", "show"]) == 2


def test_path_tells_which_files_are_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "config", "path"]) == 0
    assert f"{home}/config/forerun/edge.toml  (not there)" in capsys.readouterr().out
    assert main(["edge", "config", "path", "--json", "--system"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [file["path"] for file in told["files"]] == ["/etc/forerun/edge.toml"]
    assert told["state"] == "/var/lib/forerun"
