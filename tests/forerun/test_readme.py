"""The commands of README.md do what it says, with small models under the names that it uses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.rig import Processes, RigProcess, attempts, own_places
from tests.support.hub import Hub, serving_hub
from training.demo_pair import DRAFT_GGUF

pytestmark = [pytest.mark.llama, pytest.mark.grpc]

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    forerun (.+)$", TEXT, re.MULTILINE)
COMPLETE = ("complete", "def is_palindrome(text", "--max-tokens", "8", "--temperature", "0")


def command(*words: str) -> list[str]:
    """The only one that begins with these words, apart from them."""
    (found,) = [each for each in map(shlex.split, COMMANDS) if each[: len(words)] == [*words]]
    return found


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = re.findall(r"hf://(\S+/\S+)/(\S+\.gguf)", TEXT)
    with serving_hub() as served:
        served.repositories = tuple({repository for repository, _ in files})
        served.files |= dict.fromkeys((name for _, name in files), DRAFT_GGUF.read_bytes())
        yield served


async def completed(processes: Processes, environment: dict[str, str]) -> str:
    """What `forerun complete` prints once the daemon has a verifier."""
    async for _ in attempts():
        asked = await processes.start("complete", *COMPLETE, environment=environment)
        said = await asked.process.stdout.read()  # type: ignore[union-attr]  # a pipe
        if await asked.process.wait() == 0:
            return said.decode()
    raise AssertionError("the attempts end with an error")


def surroundings(folder: Path, hub: Hub) -> dict[str, str]:
    """A machine of its own: folders, and the hub."""
    return own_places(folder) | hub.environment | {"HF_HOME": str(folder / "hub")}


async def test_one_machine(tmp_path: Path, hub: Hub) -> None:
    machine = surroundings(tmp_path, hub)
    async with Processes(pin=False) as processes:
        await processes.start("local", *command("local"), "--port", "0", environment=machine)
        assert len(await completed(processes, machine)) > 4


async def test_two_machines(tmp_path: Path, hub: Hub) -> None:
    server, laptop = (surroundings(tmp_path / name, hub) for name in ("server", "laptop"))
    async with Processes(pin=False) as processes:
        words = ("--pair", "--host", "127.0.0.1", "--port", "0", "--json")
        verifier: RigProcess = await processes.start(
            "verifier", *command("serve"), *words, environment=server
        )
        line = (await verifier.read(180.0))["pair"].split()
        assert len(line) == len(command("pair", "HOST:PORT")) - 1
        paired = await processes.start("pair", "pair", *line, environment=laptop)
        assert await paired.process.wait() == 0
        await processes.start("edge", *command("edge"), "--port", "0", environment=laptop)
        assert len(await completed(processes, laptop)) > 4
