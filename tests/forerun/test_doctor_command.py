"""`forerun doctor` on a device without a verifier, and with options that make no sense."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from forerun.cli import main
from tests.forerun.beside import state_folder

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.llama]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_folder(tmp_path, monkeypatch)


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_verifier_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    address = nobody()
    known = ("--rtt", "20", "--step", "30", "--draft-step", "5", "--acceptance", "0.8")
    assert main(["doctor", "--verifier", address, *known, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    levels = {each["name"]: each["level"] for each in found["findings"]}
    assert found["ok"] is False
    assert levels[f"{address} connection"] == "fail"
    assert levels["draft file"] == "fail"
    assert levels["outlook"] == "ok"


@pytest.mark.parametrize("words", [("--acceptance", "2"), ("--rtt", "-1"), ("--draft-step", "nan")])
def test_nonsense_is_refused_before_anything_is_tried(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    assert f"{words[0]} is" in capsys.readouterr().err
