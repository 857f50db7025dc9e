"""Edges through the proxy of a real Ray cluster, to two replicas of the tiny target."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from edge_client.network.verifiers import Verifiers
from tests.lab.integrations.ray_tiny import APPLICATION
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import EOS, generation
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = [pytest.mark.grpc, pytest.mark.ray, pytest.mark.xdist_group("ray")]

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 240.0
GRACE = 5.0
"""Seconds for a replica's end, after which its sessions are cut off and move."""

LONG = SamplingParams(max_tokens=60, ignore_eos=True)


@dataclass
class Cluster:
    """The process that has it."""

    process: subprocess.Popen[bytes]
    folder: Path  # where replicas mark their steps
    address: str = ""

    def say(self, replicas: int) -> None:
        """That so many are wanted."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"replicas": replicas}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, "the cluster ended or was late; what it said stands above"
        said: dict[str, Any] = json.loads(line)
        return said

    @property
    def hold(self) -> Path:
        return self.folder / "hold"

    def steps(self) -> dict[str, int]:
        """How many each replica has done or begun."""
        return {path.name: path.stat().st_size for path in self.folder.glob("replica-*")}

    def busy_since(self, before: dict[str, int]) -> set[str]:
        """Replicas that have done or begun a step since then."""
        return {name for name, count in self.steps().items() if count > before.get(name, 0)}

    def end(self) -> None:
        self.hold.unlink(missing_ok=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=PATIENCE)  # the end of its standard input is its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # whatever Ray has left


def begun(folder: Path) -> Cluster:
    (folder / "config.json").write_text("{}", encoding="utf-8")  # what a model's folder has
    what = ["--application", APPLICATION, "--args", json.dumps({"model": str(folder), "grace": GRACE})]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.integrations.ray_cluster", *what, "--replicas", "2"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab' / 'integrations'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    return Cluster(process, folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Ray takes no port 0, so one that was free may be somebody's when it comes to listen: once more then."""
    started = begun(tmp_path_factory.mktemp("replicas"))
    try:
        try:
            started.address = started.hear()["listening"]
        except AssertionError:
            started.end()
            started = begun(tmp_path_factory.mktemp("replicas"))
            started.address = started.hear()["listening"]
        yield started
    finally:
        started.end()


async def text_of(run: Generation) -> tuple[int, ...]:
    async for _ in run:
        pass
    return tuple(run.session.text)


async def test_the_text_is_the_targets(cluster: Cluster) -> None:
    async with VerifierChannel(cluster.address) as channel:
        with DrafterThread(TinyDrafter()) as drafts:
            run = generation(channel, drafts, LONG, make_policy("sync:4"))
            assert await text_of(run) == target_alone((1, 2, 3), LONG, EOS)
    assert run.session.stats.resumes == 0
    assert run.session.stats.accepted > 0


async def test_the_turns_of_a_chat_meet_one_replica_and_chats_both(cluster: Cluster) -> None:
    served = set[str]()
    async with Verifiers([cluster.address]) as pool:
        await pool.heard(PATIENCE)
        for chat in range(12):
            turns = set[str]()
            for _ in range(3):
                before = cluster.steps()
                await text_of(generation(pool.route(f"chat {chat}"), None, LONG, make_policy("off")))
                turns |= cluster.busy_since(before)
            assert len(turns) == 1, f"chat {chat}"
            served |= turns
    assert len(served) == 2, "one in 2,048 clusters places a dozen chats on one replica"


async def test_a_replica_that_is_taken_away_loses_no_token(cluster: Cluster) -> None:
    async with Verifiers([cluster.address]) as pool:
        await pool.heard(PATIENCE)
        before, runs, texts = cluster.steps(), list[Generation](), list[asyncio.Task[tuple[int, ...]]]()
        cluster.hold.touch()
        while len(cluster.busy_since(before)) < 2 or len(runs) < 8:
            runs.append(generation(pool.route(f"chat {len(runs)}"), None, LONG, make_policy("off")))
            texts.append(asyncio.create_task(text_of(runs[-1])))
            await asyncio.sleep(0.05)
        cluster.say(1)
        until = time.monotonic() + PATIENCE
        while not any(run.session.stats.resumes for run in runs) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # it is cut off while its step is still held
        cluster.hold.unlink()
        assert set(await asyncio.gather(*texts)) == {target_alone((1, 2, 3), LONG, EOS)}
        moved = [run for run in runs if run.session.stats.resumes]
        assert 0 < len(moved) < len(runs), "only those of the replica that goes move"
        assert await asyncio.to_thread(cluster.hear) == {"replicas": 1}
        cluster.say(2)  # as the other tests have it
        assert await asyncio.to_thread(cluster.hear) == {"replicas": 2}
