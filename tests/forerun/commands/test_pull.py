"""`forerun pull`, as a person and as a program calls it."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.cli import main
from tests import wording
from tests.edge_client.small_server import Handler, serving

MODEL = b"GGUF" + b"weights" * 100
SHA256 = hashlib.sha256(MODEL).hexdigest()
NAME = "hf://o/r/f.gguf"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub that has one file for whoever has the token."""

    def answer(request: Handler) -> None:
        allowed = request.headers.get("Authorization") == "Bearer hf_token"
        request.reply(200 if allowed else 401, MODEL if allowed else b"")

    with serving(answer) as address:
        monkeypatch.setenv("HF_ENDPOINT", f"http://{address}")
        monkeypatch.setenv("HF_TOKEN", "hf_token")
        monkeypatch.setenv("no_proxy", "*")
        yield tmp_path / "models"


def pull(models: Path, *words: str) -> int:
    return main(["pull", "--models", str(models), *words])


def test_a_model_is_fetched_once(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull(models, NAME, "--sha256", SHA256) == 0
    told = capsys.readouterr()
    assert f"{NAME} fetched: {models}/o/r/main/f.gguf" in told.out
    assert f"704 B, SHA-256 {SHA256} (as given)" in told.out
    assert "… fetching http://" in told.err
    assert "hf_token" not in told.out + told.err
    assert pull(models, NAME) == 0
    assert "is here already" in capsys.readouterr().out
    assert pull(models, NAME, "--sha256", "0" * 64) == 2
    wording.keep(capsys.readouterr().err)


def test_a_file_address_is_refused_with_the_path_to_give(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a draft.gguf"
    path.write_bytes(MODEL)
    assert pull(models, path.as_uri()) == 2
    assert capsys.readouterr().err.strip().endswith(f": {path}")
    assert pull(models, str(path)) == 0


def test_programs_get_json(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull(models, NAME, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["sha256"], told["size"]) == (f"{models}/o/r/main/f.gguf", SHA256, 704)
    assert pull(models, "--list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [told]
    assert pull(models, "--verify", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{"name": NAME, "path": told["path"], "ok": True}]
    assert pull(models, "--remove", NAME, "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"]
    assert pull(models, "--list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_changed_file_is_found_out(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pull(models, NAME)
    assert pull(models, "--verify", NAME) == 0
    (models / "o/r/main/f.gguf").write_bytes(MODEL[:-1] + b"!")
    assert pull(models, "--verify") == 1
    assert f"CHANGED  {NAME}" in capsys.readouterr().out


def test_offline_never_opens_a_socket(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(models, NAME)

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert pull(models, NAME, "--offline") == 0
    assert pull(models, "hf://o/r/other.gguf", "--offline") == 2
    wording.keep(capsys.readouterr().err)


def test_a_gated_model_needs_the_token(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert pull(models, NAME) == 2
    wording.keep(capsys.readouterr().err)


def test_a_file_of_ones_own_is_hashed_and_left(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(MODEL)
    assert pull(models, str(own), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(own), "sha256": SHA256, "size": 704}
    assert pull(models, str(own), "--sha256", "0" * 64) == 2
    own.write_bytes(b"text")
    assert pull(models, str(own)) == 2
    assert pull(models, str(tmp_path / "none")) == 2
    assert not models.exists()


@pytest.mark.api  # platformdirs, of the `edge` extra
def test_the_usual_folder_is_the_users_own(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["pull", NAME]) == 0
    assert (tmp_path / "forerun" / "models" / "o/r/main/f.gguf").read_bytes() == MODEL


def test_what_was_fetched_is_found_by_its_name(models: Path) -> None:
    from common.llama.model import find_model

    pull(models, NAME)
    assert find_model(NAME, str(models)) == f"{models}/o/r/main/f.gguf"
