"""The whole system without a server for a while: the guess is shown, the text is the target's own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from forerun.cli import main
from forerun.prompts import bundled
from forerun.rig import Rig, RigSettings
from lab import demo_models
from tests import wording

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]

SAMPLING = {"max_tokens": 96, "ignore_eos": True}
DRAFT = str(demo_models.DRAFT_GGUF)


async def through_an_outage(rig: Rig, prompt: str) -> tuple[list[str], dict[str, Any]]:
    """The link breaks after ten pieces and comes back when twenty are guessed; what was guessed, the end."""
    pieces, guess, guessed = 0, list[str](), list[str]()
    event: dict[str, Any] = {}
    async for event in rig.events(prompt, "adaptive", SAMPLING):
        match event["event"]:
            case "text":
                pieces += 1
                del guess[:1]
                if pieces == 10:
                    await rig.link.disable()
                    rig.link.cut()
            case "preview":
                assert event["start"] == pieces + len(guess)
                guess += event["pieces"]
                guessed += event["pieces"]
                if len(guess) >= 20:
                    await rig.link.enable()
            case "withdraw":
                del guess[event["start"] - pieces :]
    assert guess == []
    return guessed, event


async def test_a_text_goes_on_through_an_outage_and_is_the_targets_own() -> None:
    prompt = bundled()[0]
    async with Rig(RigSettings(str(demo_models.TARGET_DIR), DRAFT, rtt_ms=5.0)) as rig:
        alone = await rig.complete(prompt, "off", SAMPLING)
        guessed, done = await through_an_outage(rig, prompt)
    assert len(guessed) >= 20
    assert done["tokens"] == alone["tokens"]
    assert done["preview"]["tokens"] == []
    assert "device-only" in [change["mode"] for change in done["modes"]]


def test_without_any_server_the_record_tells_the_guess_from_the_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens on port 1. The pauses are shorter than usual, and long enough for a busy machine."""
    monkeypatch.setattr("edge_client.core.reconnect.GROWTH", 1.8)
    words = ["edge", "complete", "--verifier", "127.0.0.1:1", "--draft", DRAFT, "--threads", "1", "--json"]
    assert main([*words, "--prompt", "def parse_header(line):", "--max-tokens", "24"]) == 1
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["tokens"] == []
    assert len(record["preview"]["tokens"]) == 24
    wording.keep(record["error"])
    assert "8 reconnects in a row brought no text" in err
    assert "the draft begins alone" in err


async def test_who_would_rather_wait_is_told_at_once_that_nobody_is_there() -> None:
    words = ["edge", "complete", "--verifier", "127.0.0.1:1", "--draft", DRAFT, "--offline", "wait"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun", *words, "--prompt", "x", stderr=asyncio.subprocess.PIPE
    )
    _, err = await child.communicate()
    assert child.returncode == 1
    assert "127.0.0.1:1 cannot be reached" in err.decode()
