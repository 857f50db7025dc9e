"""A draft file that llama.cpp dies of ends no command: it is told in a sentence."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from forerun.cli import main
from training.options import open_draft

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]

COMMANDS = {
    "daemon": ["edge", "--listen", "127.0.0.1:0"],
    "without drafting": ["edge", "--listen", "127.0.0.1:0", "--no-drafting"],
    "record": ["record", "--out", "nowhere.jsonl", "--prompt", "x"],
}


@pytest.fixture
def deadly(tmp_path: Path) -> Path:
    """It reads well, and llama.cpp ends the process that loads it: two tokens have one text."""
    from tests.edge_client.draft.tiny_gguf import write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "draft.gguf")
    path.write_bytes(path.read_bytes().replace(b"<filler1>", b"<filler2>"))
    return path


def test_what_has_passed_is_kept_though_nothing_was_kept_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from common.llama.model import LlamaSettings
    from tests.edge_client.draft.tiny_gguf import write_tiny_gguf

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with open_draft(LlamaSettings(str(write_tiny_gguf(tmp_path / "draft.gguf")))):
        pass
    record = tmp_path / "state" / "forerun" / "tried.json"
    assert str(tmp_path / "draft.gguf") in record.read_text()
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert not caplog.records


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_that_llama_cpp_dies_of_is_told_in_a_sentence(
    name: str,
    deadly: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main([*COMMANDS[name], "--draft", str(deadly)]) == 2
    told = capsys.readouterr().err
    assert f"llama.cpp cannot load {deadly}: the process that tried it was ended by SIGABRT" in told
    assert "fetch it or convert the model again" in told
