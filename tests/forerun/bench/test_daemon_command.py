"""`forerun bench daemon` beside a daemon: a table for people, a report for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forerun.beside import command, daemon, state_folder

pytestmark = [pytest.mark.api, pytest.mark.grpc]

SMALL = ("bench", "daemon", "--clients", "2", "--texts", "1", "--tokens", "8")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return state_folder(tmp_path, monkeypatch)


async def test_a_table_and_a_report(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with daemon(state):
        assert await command(*SMALL) == 0
        lines = capsys.readouterr().out.splitlines()
        assert await command(*SMALL, "--text", "--prompt", "abc", "--json", "--out", str(state / "r")) == 0
    assert lines[0] == "2 clients, 1 texts of 8 tokens each"
    assert lines[1].split() == ["speculation", "streaming"]
    assert lines[-1].endswith("all 2 texts are the same")
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((state / "r").read_text())
    assert found["kinds"]["speculation"]["tokens"] == 16
    assert found["daemon"] == {"mode": "ahead"}


async def test_without_a_daemon(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await command(*SMALL) == 1
    assert "start one with: forerun edge" in capsys.readouterr().err
    assert await command(*SMALL, "--tokens", "0") == 2
