"""`forerun index`: an index is made with the draft's tokenizer, and updated."""

import json
from pathlib import Path
from typing import Any

import pytest

from edge_client.process import run_file as daemon_file
from edge_client.process.paths import chosen_paths
from edge_client.process.run_file import this_process
from forerun.cli import main
from training.demo_pair import DRAFT_GGUF

pytestmark = pytest.mark.llama


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["index", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_index_is_made_and_updated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "one.py").write_text("def parse_header(line):\n    return line.split(':')\n")
    draft = ("--draft", str(DRAFT_GGUF))
    made = told(capsys, str(project), *draft)
    assert (made["name"], made["files"]) == ("project", 1)
    assert made["tokens"] > 5
    (project / "two.py").write_text("def other(): pass\n")
    updated = told(capsys, *draft)
    assert updated["files"] == 2
    assert updated["roots"] == [str(project)]
    assert updated["tokens"] > made["tokens"]


def folder(path: Path) -> str:
    path.mkdir(parents=True)
    (path / "one.py").write_text("def parse_header(line):\n    return line.split(':')\n")
    return str(path)


def test_two_folders_of_one_name_have_two_indexes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = ("--draft", str(DRAFT_GGUF))
    first, second = (folder(tmp_path / each / "project") for each in ("a", "b"))
    path = told(capsys, first, *draft)["path"]
    assert main(["index", second, *draft]) == 2
    assert "--name" in capsys.readouterr().err
    assert told(capsys, first, *draft)["path"] == path
    assert told(capsys, second, "--name", "other", *draft)["path"] != path
    assert told(capsys, second, "--name", "project", *draft)["roots"] == [second]


def test_the_running_daemons_draft_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if only its command line names one."""
    project = folder(tmp_path / "project")
    assert main(["index", project]) == 2
    capsys.readouterr()
    flags = json.dumps({"flags": {"draft.model": str(DRAFT_GGUF)}, "config": None})
    record = this_process(started_at=0.0, listen="127.0.0.1:1", version="1.2.3", flags=flags)
    run_file = chosen_paths(system=False).daemon
    run_file.parent.mkdir(parents=True)
    daemon_file.write(run_file, record)
    assert told(capsys, project)["files"] == 1
    (tmp_path / "edge.toml").write_text("")
    assert main(["index", project, "--config", str(tmp_path / "edge.toml")]) == 2  # as it is asked for


@pytest.mark.parametrize("arguments", [("--name", "x"), ("no/such/folder",), (".", "--name", "a/b"), ()])
def test_what_cannot_be_done_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", *arguments]) == 2
    assert capsys.readouterr().err.startswith("forerun: ")
