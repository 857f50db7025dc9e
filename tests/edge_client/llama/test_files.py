"""A draft model is found where it was put, and refused if it is not what it should be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.llama.files import find_model

MODEL = b"GGUF" + b"weights"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.gguf"
    path.write_bytes(MODEL)
    return path


def test_a_file_of_this_machine_is_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model(str(file)) == str(file)
    monkeypatch.setenv("HOME", str(file.parent))
    assert find_model("~/d.gguf") == str(file)


def test_a_hash_is_held_against_it(file: Path) -> None:
    right = hashlib.sha256(MODEL).hexdigest()
    assert find_model(str(file), sha256=right.upper()) == str(file)
    with pytest.raises(UserError, match=f"has the SHA-256 {right}, not 0+; it is not loaded"):
        find_model(str(file), sha256="0" * 64)


@pytest.mark.parametrize("name", ["hf://o/r/f.gguf", "hf://o/r/f.gguf@v1", "https://h/f.gguf"])
def test_what_was_not_fetched_is_told_how_to(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is not on this machine; fetch it with: forerun pull {name}"):
        find_model(name, str(tmp_path))


def test_what_was_fetched_is_found_in_the_store(tmp_path: Path) -> None:
    path = tmp_path / "o" / "r" / "main" / "f.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)
    assert find_model("hf://o/r/f.gguf", str(tmp_path)) == str(path)


def test_what_is_not_there_or_no_gguf_is_told(file: Path) -> None:
    with pytest.raises(UserError, match="there is no draft model at"):
        find_model(str(file.with_name("none.gguf")))
    file.write_bytes(b"text")
    with pytest.raises(UserError, match="is not a GGUF file"):
        find_model(str(file))
