"""`forerun complete` against a real API: as text, as JSON, and its errors."""

import io
import json
from pathlib import Path

import pytest

from tests import wording
from tests.edge_client.api.world import alone
from tests.forerun.beside import command, daemon

pytestmark = [pytest.mark.api, pytest.mark.grpc]

GREEDY = ("--temperature", "0", "--max-tokens", "20")


async def test_the_text_goes_to_a_pipe_and_nothing_else(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with daemon(state):
        assert await command("complete", "fade", *GREEDY) == 0
        one = capsys.readouterr()
        assert await command("complete", "fade", *GREEDY, "--no-speculation", "--model", "tiny") == 0
    assert one.out == f"{alone('fade')}\n" == capsys.readouterr().out
    assert "tokens in" in one.err
    assert "\x1b" not in one.out + one.err


async def test_standard_input_is_a_prompt(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("fade"))
    async with daemon(state):
        assert await command("complete", "-", *GREEDY) == 0
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        assert await command("complete", *GREEDY) == 2
    found = capsys.readouterr()
    assert found.out == f"{alone('fade')}\n"
    assert "the prompt is empty" in found.err


async def test_json_is_one_object(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with daemon(state):
        assert await command("complete", "fade", *GREEDY, "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["text"] == alone("fade") == "".join(run[0] for run in whole["origins"])
    assert sum(run[2] for run in whole["origins"]) == whole["figures"]["tokens"]
    assert whole["finish"] in ("stop", "length")


async def test_with_a_system_text_it_is_a_question(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with daemon(state):
        assert await command("complete", "de", "--system", "fa", *GREEDY) == 0
    assert capsys.readouterr().out == f"{alone('fade')}\n"


async def test_errors_are_sentences(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await command("complete", "a") == 1
    wording.keep(capsys.readouterr().err)
    async with daemon(state):
        assert await command("complete", "a", "--model", "other") == 2
        wording.keep(capsys.readouterr().err)
        assert await command("complete", "a", "--temperature", "-1") == 2
        wording.keep(capsys.readouterr().err)
