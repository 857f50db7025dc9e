"""`forerun index`: an index is made with the draft's tokenizer, and updated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.cli import main
from forerun.demo_pair import DRAFT_GGUF

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


@pytest.mark.parametrize("arguments", [("--name", "x"), ("no/such/folder",), (".", "--name", "a/b"), ()])
def test_what_cannot_be_done_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", *arguments]) == 2
    assert capsys.readouterr().err.startswith("forerun: ")
