"""A target and its draft on one machine, by one command."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from common.sampling import SamplingParams
from edge_client.process.client import connect
from edge_client.process.paths import find_paths
from edge_client.texts.events import TextAdded, TextEnded
from forerun.cli import main
from forerun.demo_pair import DRAFT_GGUF, PROMPTS, TARGET_DIR
from lab.rig import Processes, RigEdge, own_places

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]

SAMPLING = SamplingParams(temperature=0.8, seed=3, max_tokens=32, ignore_eos=True)


async def written(edge: RigEdge, prompt: str, policy: str) -> tuple[str, int]:
    """The text, and how many of its tokens were drafted."""
    text, num_accepted = "", 0
    async for _, event in edge.events(prompt, policy, SAMPLING):
        match event:
            case TextAdded():
                text += event.text
            case TextEnded():
                num_accepted = event.figures["accepted"]
    return text, num_accepted


async def test_the_draft_of_this_machine_speeds_the_target_of_this_machine(tmp_path: Path) -> None:
    prompt, places = json.loads(PROMPTS.read_text("utf-8"))[0]["text"], own_places(tmp_path)
    words = ("--target", str(TARGET_DIR), "--draft", str(DRAFT_GGUF), "--listen", "127.0.0.1:0")
    async with Processes() as processes:
        child = await processes.start("daemon", "local", *words, environment=places)
        edge = await RigEdge.ready(child, places)
        alone, _ = await written(edge, prompt, "off")
        drafted, num_accepted = await written(edge, prompt, "adaptive")
        (verifier,) = connect(find_paths(places).daemon).get("/v1/status")["verifiers"]
        child.send(signal.SIGTERM)
        await child.gone()
    assert drafted == alone
    assert num_accepted > 0
    with pytest.raises(OSError):  # nobody listens there any more
        socket.create_connection(verifier["address"].rsplit(":", 1), timeout=5.0)


def test_a_target_that_cannot_be_loaded_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in own_places(tmp_path).items():
        monkeypatch.setenv(name, place)
    assert main(["local", "--target", str(tmp_path), "--draft", str(DRAFT_GGUF)]) == 2
