"""No text changes when a daemon tries, keeps or rolls back a newer draft while texts are under way."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest

from common.sampling import SamplingParams
from edge_client.process.client import connect
from edge_client.process.paths import find_paths
from edge_client.texts.events import TextAdded
from lab.rig import Processes, RigEdge, own_places
from tests.edge_client.draft.tiny_gguf import write_adapter
from training import demo_pair

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc, pytest.mark.slow]

TOGETHER = 3  # texts at once
MOST_ROUNDS = 60
SPOILED = 0.2  # scale of changes that leave a draft seldom right


def scrambled(path: Path) -> Path:
    """Write the demo pair's draft with its layer's rows in reverse order, so that it is seldom right."""
    shutil.copyfile(demo_pair.DRAFT_GGUF, path)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            tensor.data[:] = tensor.data[::-1].copy()
    return path


def spoiled(path: Path) -> Path:
    """Write the demo pair's draft with low-rank changes, which an adapter of the scale -`SPOILED` undoes."""
    shutil.copyfile(demo_pair.DRAFT_GGUF, path)
    adapter = write_adapter(path.with_suffix(".change"), demo_pair.DRAFT_GGUF, SPOILED)
    changes = {tensor.name: tensor.data for tensor in gguf.GGUFReader(adapter).tensors}
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if (a := changes.get(f"{tensor.name}.lora_a")) is not None:
            weights = gguf.dequantize(tensor.data, tensor.tensor_type) + changes[f"{tensor.name}.lora_b"] @ a
            tensor.data[:] = gguf.quantize(weights, tensor.tensor_type)
    return path


def cases() -> list[tuple[str, SamplingParams]]:
    prompts = [each["text"] for each in json.loads(demo_pair.PROMPTS.read_text())][:TOGETHER]
    samplings = [SamplingParams(temperature=each, seed=7, max_tokens=24) for each in (0.0, 0.8)]
    return [(prompt, sampling) for sampling in samplings for prompt in prompts]


async def text_of(edge: RigEdge, prompt: str, sampling: SamplingParams) -> str:
    events = [event async for _, event in edge.events(prompt, "adaptive", sampling, recall=False)]
    return "".join(event.text for event in events if isinstance(event, TextAdded))


async def texts_by(edge: RigEdge) -> list[str]:
    gate = asyncio.Semaphore(TOGETHER)

    async def one(case: tuple[str, SamplingParams]) -> str:
        async with gate:
            return await text_of(edge, *case)

    return await asyncio.gather(*map(one, cases()))


async def verdict_on(rig: Processes, address: str, draft: Path, newer: Path, folder: Path) -> dict[str, Any]:
    """Write texts before, while and after a daemon tries `newer` in place of `draft`. Return its status."""
    places, offers = own_places(folder / "places"), folder / "offers"
    words = ["--draft", str(draft), "--verifier", address, "--listen", "127.0.0.1:0", "--threads", "1"]
    environment = {**places, "FORERUN_EDGE_DRAFT_UPDATES": str(offers)}
    module = "tests.edge_client.draft.eager_edge"
    child = await rig.start("edge", "edge", *words, "--remember", "0", module=module, environment=environment)
    edge, client = await RigEdge.ready(child, places), connect(find_paths(places).daemon)
    expected = await texts_by(edge)
    assert all(expected)
    os.replace(newer, offers / "newer.gguf")
    told = dict[str, Any]()
    for _ in range(MOST_ROUNDS):
        assert await texts_by(edge) == expected
        told = client.get("/v1/status")["draft"]
        if "last_trial" in told:
            break
    assert await texts_by(edge) == expected
    await child.stop()
    return told


async def test_texts_are_the_same_whether_a_draft_is_kept_or_rolled_back(tmp_path: Path) -> None:
    weak, bad = scrambled(tmp_path / "weak.gguf"), tmp_path / "bad.part"
    good = Path(shutil.copyfile(demo_pair.DRAFT_GGUF, tmp_path / "good.part"))
    write_adapter(bad, demo_pair.DRAFT_GGUF, 1.0)
    worse, mend = spoiled(tmp_path / "worse.gguf"), tmp_path / "mend.part"
    write_adapter(mend, worse, -SPOILED)
    for name in ("first", "second", "third"):
        (tmp_path / name / "offers").mkdir(parents=True)
    async with Processes() as rig:
        options = ("--model", str(demo_pair.TARGET_DIR), "--deterministic", "--threads", "1")
        _, address = await rig.start_verifier(*options, "--log-level", "warning")
        kept = await verdict_on(rig, address, weak, good, tmp_path / "first")
        assert kept["file"] == str(tmp_path / "first" / "offers" / "newer.gguf")
        gone = await verdict_on(rig, address, demo_pair.DRAFT_GGUF, bad, tmp_path / "second")
        assert gone["file"] == str(demo_pair.DRAFT_GGUF)
        mended = await verdict_on(rig, address, worse, mend, tmp_path / "third")
        assert mended["file"] == str(tmp_path / "third" / "offers" / "newer.gguf")
        assert "trial" not in kept | gone | mended
