"""`forerun doctor` on a device without a verifier."""

import json
import socket
from pathlib import Path

import pytest

from edge_client.process import run_file as daemon_file
from edge_client.process.run_file import this_process
from forerun.cli import build_parser, main
from forerun.options import given_flags
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
    assert main(["doctor", "--verifier", address, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    levels = {each["name"]: each["level"] for each in found["findings"]}
    assert found["ok"] is False
    assert levels[f"{address} connection"] == "fail"
    assert levels["draft file"] == "fail"
    assert levels["outlook"] == "skip"


def test_without_options_it_looks_at_the_running_daemons_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, other = nobody(), nobody()
    options = build_parser("edge").parse_args(["edge", "--verifier", address, "--draft", "nowhere.gguf"])
    record = this_process(started_at=0.0, listen=nobody(), version="1.2.3", flags=given_flags(options))
    daemon_file.write(tmp_path / "forerun" / "edge.pid", record)
    names = list[set[str]]()
    for words in ((), ("--verifier", other)):
        assert main(["doctor", *words, "--json"]) == 1
        names.append({each["name"] for each in json.loads(capsys.readouterr().out)["findings"]})
    assert f"{address} connection" in names[0]
    assert f"{other} connection" in names[1]
    assert f"{address} connection" not in names[1]
