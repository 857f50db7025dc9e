"""A target and its draft on one machine, by one command."""

import json
import os
import signal
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from common.llama import library
from common.sampling import SamplingParams
from edge_client.process.client import connect
from edge_client.process.paths import find_paths
from edge_client.texts.events import TextAdded, TextEnded
from forerun.cli import main
from forerun.commands import edge, local
from lab.rig import Processes, RigEdge, attempts, own_places
from training.demo_pair import DRAFT_GGUF, PROMPTS, TARGET_DIR

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


async def test_the_draft_of_this_machine_drafts_for_the_target_of_this_machine(tmp_path: Path) -> None:
    prompt, places = json.loads(PROMPTS.read_text("utf-8"))[0]["text"], own_places(tmp_path)
    words = ("--target", str(TARGET_DIR), "--draft", str(DRAFT_GGUF), "--listen", "127.0.0.1:0")
    async with Processes() as processes:
        child = await processes.start("daemon", "local", *words, environment=places)
        edge = await RigEdge.ready(child, places)
        alone, _ = await written(edge, prompt, "off")
        drafted, num_accepted = await written(edge, prompt, "sync:4")
        (verifier,) = connect(find_paths(places).daemon).get("/v1/status")["verifiers"]
        child.send(signal.SIGTERM)
        await child.gone()
    assert drafted == alone
    assert num_accepted > 0
    with pytest.raises(OSError):  # nobody listens there any more
        socket.create_connection(verifier["address"].rsplit(":", 1), timeout=5.0)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux, to find the child")
@pytest.mark.parametrize("end", ["kill the target", "end the command", "kill the command"])
async def test_both_end_together(tmp_path: Path, end: str) -> None:
    """One is killed while both serve, or the command is ended while the target loads."""
    places = own_places(tmp_path)
    words = ("--target", str(TARGET_DIR), "--draft", str(DRAFT_GGUF), "--listen", "127.0.0.1:0")
    async with Processes() as processes:
        child = await processes.start("daemon", "local", *words, environment=places)
        if end != "end the command":
            await RigEdge.ready(child, places)
        target = await first_child_of(child.process.pid)
        match end:
            case "kill the target":
                os.kill(target, signal.SIGKILL)
            case "end the command":
                child.send(signal.SIGTERM)
            case "kill the command":
                child.send(signal.SIGKILL)
        await child.gone()
        async for _ in attempts():
            if not is_running(target):
                break
    expected = {"kill the target": 1, "end the command": 128 + signal.SIGTERM}
    assert child.code == expected.get(end, -signal.SIGKILL)


def is_running(process: int) -> bool:
    """A process that has ended and that nobody waits for has no command line."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except OSError:
        return False


async def first_child_of(process: int) -> int:
    async for _ in attempts():
        if children := children_of(process):
            return min(children)
    raise AssertionError("the attempts end with an error")


def children_of(process: int) -> list[int]:
    told = [task.joinpath("children").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return [int(number) for each in told for number in each.split()]


def test_a_target_that_cannot_be_loaded_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in own_places(tmp_path).items():
        monkeypatch.setenv(name, place)
    assert main(["local", "--target", str(tmp_path), "--draft", str(DRAFT_GGUF)]) == 2


@pytest.mark.parametrize(("free", "num_layers"), [(0, 0), (1, 0), (1, 99), (10**15, 0)])  # 0: unknown, none
@pytest.mark.parametrize(
    "told", [[], ["--policy", "adaptive"], ["--policy", "tree"]], ids=lambda told: told[-1:]
)
def test_a_target_beyond_memory_has_a_policy_of_its_own(
    free: int, num_layers: int, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in own_places(tmp_path).items():
        monkeypatch.setenv(name, place)
    begun: list[str] = []
    monkeypatch.setattr(local, "available_memory", lambda: free)
    monkeypatch.setattr(library, "offloaded_layers", lambda asked: num_layers)
    monkeypatch.setattr(local, "target_process", lambda *_: nullcontext("127.0.0.1:1"))
    monkeypatch.setattr(edge, "run", lambda options: begun.append(getattr(options, local.POLICY, "")))
    main(["local", "--target", str(DRAFT_GGUF), "--draft", str(DRAFT_GGUF), *told])
    assert begun == [
        local.FOR_LITTLE_MEMORY if (free, num_layers, told) == (1, 0, []) else "".join(told[-1:])
    ]
