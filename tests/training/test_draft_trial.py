"""A draft file that llama.cpp dies of ends no command: it is told in a sentence."""

from pathlib import Path

import pytest

from forerun.cli import main

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
