"""What must hold under every known attack.

The processes live and keep to 2 GiB with their children. An honest text beside the attack is the same as
without it, and the 95th percentile of its gaps stays below three times the undisturbed one. When told to go,
the processes are gone within their grace. `make attacks` plays all; attacks over MQTT are played by
tests/edge_client/fleet/test_fleet_task.py.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from lab.demo_models import DRAFT_GGUF
from tests.attacks import on_daemon, on_verifier, stages
from tests.attacks.honest import Honest, Text
from tests.attacks.stages import DaemonStage, Stage, VerifierStage

pytestmark = [
    pytest.mark.api,
    pytest.mark.grpc,
    pytest.mark.torch,
    pytest.mark.grammar,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded and watched as on Linux"),
]

MOST_RATIO = 3.0
"""Of the 95th percentile of gaps, under attack to undisturbed."""

LONGEST = 150.0
"""Seconds that one attack may take."""

Make = Callable[[Path, Honest], AbstractAsyncContextManager[Stage]]


@pytest.fixture
async def honest() -> AsyncIterator[Honest]:
    stages.raise_file_limit()
    client = await Honest.start()
    yield client
    await client.stop()


@contextlib.asynccontextmanager
async def verifier(folder: Path, honest: Honest) -> AsyncIterator[Stage]:
    async with VerifierStage(folder, honest) as stage:
        yield stage


@contextlib.asynccontextmanager
async def verifier_with_tokens(folder: Path, honest: Honest) -> AsyncIterator[Stage]:
    async with VerifierStage(folder, honest, has_tokens=True) as stage:
        yield stage


@contextlib.asynccontextmanager
async def daemon(folder: Path, honest: Honest, *flags: str, **more: Any) -> AsyncIterator[Stage]:
    async with (
        VerifierStage(folder / "behind", honest) as behind,
        DaemonStage(folder, honest, behind, *flags, **more) as stage,
    ):
        yield stage


def drafting_daemon(folder: Path, honest: Honest) -> AbstractAsyncContextManager[Stage]:
    return daemon(folder, honest, "--policy", "adaptive")


def daemon_with_few_files(folder: Path, honest: Honest) -> AbstractAsyncContextManager[Stage]:
    return daemon(folder, honest, files=1024)


async def under_attack(stage: Stage, attack: Awaitable[None], before: Text) -> Text:
    """Play the attack with an honest text beside it, which must be as it was before. Raise `Broken`."""
    playing = asyncio.ensure_future(attack)
    try:
        text = await stage.text(before.asked_tokens, max(30.0, 2 * MOST_RATIO * sum(before.gaps)))
        async with asyncio.timeout(LONGEST):
            await playing
    except Exception:
        stage.check()  # a process that died explains whatever else was seen
        raise
    finally:
        playing.cancel()
        await asyncio.wait([playing])
    stage.check()
    assert not text.error
    assert text.text == before.text
    return text


@pytest.mark.parametrize(
    ("make", "attack"),
    [
        (verifier_with_tokens, on_verifier.compressed_padding),
        (verifier_with_tokens, on_verifier.forged_tokens),
        *(
            pytest.param(verifier_with_tokens, each, marks=pytest.mark.soak, id=f"paced-{each.__name__}")
            for each in (on_verifier.compressed_padding, on_verifier.forged_tokens)
        ),
        pytest.param(verifier, on_verifier.slow_grammars, marks=pytest.mark.soak),
        pytest.param(drafting_daemon, on_daemon.burst, marks=pytest.mark.soak),
        pytest.param(drafting_daemon, on_daemon.control_words, marks=pytest.mark.soak),
        pytest.param(daemon_with_few_files, on_daemon.slow_heads, marks=pytest.mark.soak),
    ],
)
async def test_an_honest_text_beside_an_attack_stays_as_it_is(
    make: Make,
    attack: Callable[[Any], Awaitable[None]],
    tmp_path: Path,
    honest: Honest,
    request: pytest.FixtureRequest,
) -> None:
    """The pace is judged by `make attacks`, since machines that run other tests are busy. An attack is played
    again if the pace alone was wrong."""
    is_paced = request.node.get_closest_marker("soak") is not None
    ratios = list[float]()
    async with make(tmp_path, honest) as stage:
        while len(ratios) < (2 if is_paced else 1) and not any(ratio < MOST_RATIO for ratio in ratios):
            before = await stage.text(150 if is_paced else 30)
            assert not before.error
            text = await under_attack(stage, attack(stage), before)
            ratios.append(text.p95 / before.p95)
        assert min(ratios) < MOST_RATIO or not is_paced
        assert all(subject.peak > 50 << 20 for subject in stage.subjects), "the memory was watched"
        going = asyncio.ensure_future(stage.text(150))
        await asyncio.sleep(0.5)
        await stage.drain()
        await going


async def test_a_target_whose_header_claims_no_layers_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """llama.cpp answers it with an abort."""
    content, path = bytearray(DRAFT_GGUF.read_bytes()), tmp_path / "damaged.gguf"
    at = content.find(b"llama.block_count") + 21
    content[at : at + 4] = bytes(4)
    path.write_bytes(content)
    command = (sys.executable, "-m", "forerun", "verify", "--model", str(path), "--listen", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(90):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 2, said
    assert said.decode().strip().splitlines()[-1].startswith("forerun: "), said
