"""`forerun verify --tensor-parallel` under torchrun: the text of one process, and an orderly end of both."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.sampling import SamplingParams
from forerun.cli import main
from tests import wording

if TYPE_CHECKING:
    from cloud_verifier.engine.torch_engine import TorchEngine

TARGET = str(Path(__file__).parents[3] / "lab" / "demo_models" / "target")
PROMPT = "def read_lines(path):\n    with open(path) as file:\n        lines = file.read()\n"
SAMPLINGS = (
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(0.8, top_p=0.95, seed=11, max_tokens=40, ignore_eos=True),
)


@asynccontextmanager
async def two_processes() -> AsyncIterator[tuple[Process, dict[str, Any]]]:
    """The demo target under torchrun, and what rank 0 says when it listens."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "forerun"]
    words = ["verify", "--model", TARGET, "--tensor-parallel", "--listen", "127.0.0.1:0", "--json"]
    words += ["--grace", "2"]
    process = await asyncio.create_subprocess_exec(*torchrun, *words, stdout=PIPE)
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 300)
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def children(pid: int) -> list[int]:
    """Return the ids of the processes that `pid` has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


async def alone(engine: TorchEngine, table: Any, prompt: list[int]) -> list[list[int]]:
    from tests.support.served import written

    return [(await written(engine, table, prompt, one, guesses=False))[0] for one in SAMPLINGS]


@pytest.mark.torch
@pytest.mark.parallel
@pytest.mark.grpc
async def test_two_processes_write_what_one_writes_and_end_together() -> None:
    """Greedy and sampled. Both ranks get SIGTERM, as by torchrun; rank 0 lets the other end with 0."""
    from cloud_verifier.engine.torch_loading import load_engine
    from tests.support.served import text_from

    engine, table = load_engine(TARGET, 1024, dtype="float32")
    prompt = engine.model.tokenize(PROMPT)
    async with two_processes() as (process, said):
        texts = [
            await text_from(said["listening"], prompt, one, engine.info.fingerprint) for one in SAMPLINGS
        ]
        assert texts == await alone(engine, table, prompt)
        assert [len(text) for text in texts] == [40, 40]
        for rank in children(process.pid):
            os.kill(rank, signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0


@pytest.mark.torch
def test_what_cannot_be_is_told_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--model", TARGET, "--tensor-parallel", "--listen", "127.0.0.1:0"]) == 2
    wording.keep(capsys.readouterr().err)
