"""A real `forerun verify` with the random model, and prompts that reach it over gRPC."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from benchmarks.gpu_step.model import kv_bytes
from benchmarks.gpu_step.rates import Run
from benchmarks.gpu_step.settings import Settings
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.transformers_adapter import TargetModel
from common.sampling import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
STOP_TIME = 30.0
"""Seconds that the verifier has to end."""

SLOTS = " KV slots of "
"""Stands behind the number of slots in the verifier's log."""

Served = tuple[list[int], float, list[float]]
"""A text, when it was asked for, and when each of its tokens came."""


NEEDED = ("cloud_verifier.server", "edge_client.channel", "forerun.verify")


def missing() -> str:
    """Why a verifier cannot run here, by the error of an import; empty if it can."""
    for name in NEEDED:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - generated code refuses an old gRPC by an error of its own
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
    return ""


def own_text(engine: TorchEngine, prompt: list[int], settings: Settings) -> list[int]:
    """What the scheduler and `engine` write after `prompt` in this process."""
    run = Run(engine, replace(settings, text_tokens=settings.served_tokens), [prompt])
    run.run()
    return run.written()[0][len(prompt) :]


def save(model: TargetModel, folder: Path) -> None:
    """Write what `forerun verify --model` reads: configuration, weights, and a tokenizer of made-up words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    cast(Any, model.module).save_pretrained(folder, max_shard_size="4GB")
    table = {word.decode(): number for number, word in enumerate(words(model.vocab_size))}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token=next(iter(table))))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def words(vocab_size: int) -> tuple[bytes, ...]:
    """The tokenizer's words, by id."""
    return tuple(f"token{number}".encode() for number in range(vocab_size))


@contextmanager
def saved(model: TargetModel, scratch: Path | None) -> Iterator[Path]:
    """A folder with the model, until the block ends. Raises `OSError` if the disk has no room for it."""
    with TemporaryDirectory(dir=scratch, prefix="gpu_step-") as name:
        needed, free = model.weight_bytes, shutil.disk_usage(name).free
        if free < 1.05 * needed:
            raise OSError(f"{name} has {free / 1e9:.1f} GB free, and the model takes {needed / 1e9:.1f} GB")
        save(model, Path(name))
        yield Path(name)


@contextmanager
def verifier(folder: Path, device: torch.device, patience: float, log: Path) -> Iterator[str]:
    """`forerun verify` on a port of its own, until the block ends; its address. Raises `RuntimeError` with
    its last words if it does not come up within `patience` seconds."""
    command = [sys.executable, "-m", "forerun", "verify", "--model", str(folder), "--device", device.type]
    command += ["--listen", "127.0.0.1:0", "--json", "--log-level", "info"]
    if device.type == "cpu":
        command += ["--threads", "1"]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    out = log.with_suffix(".out")
    with out.open("wb") as told, log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, stdout=told, stderr=errors
        )
    try:
        yield _address(process, out, log, patience)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIME)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], out: Path, log: Path, patience: float) -> str:
    until = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < until:
        lines = out.read_text(encoding="utf-8").splitlines(keepends=True)
        if lines and lines[0].endswith("\n"):
            return str(json.loads(lines[0])["listening"])
        time.sleep(0.05)
    state = "is still loading" if process.poll() is None else f"ended with {process.returncode}"
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise RuntimeError(f"the verifier {state} after {patience:.0f} s at most: {' / '.join(last)}")


def ask(address: str, prompt: Sequence[int], sampling: SamplingParams, fingerprint: bytes) -> Served:
    """What the verifier at `address` writes after `prompt` to an edge that drafts nothing."""
    from edge_client.channel import VerifierChannel
    from edge_client.core.config import SessionConfig
    from edge_client.core.policies import TreePolicy
    from edge_client.core.session import EdgeSession
    from edge_client.generation import Generation

    async def read() -> Served:
        config = SessionConfig(tuple(prompt), sampling, fingerprint, patience=None)
        times: list[float] = []
        async with VerifierChannel(address) as channel:
            begun_at = time.perf_counter()
            run = Generation(EdgeSession(config, TreePolicy()), channel, None)
            async for text in run:
                times += [time.perf_counter()] * len(text.tokens)
        return list(run.session.text), begun_at, times

    return asyncio.run(read())


def measured(served: Served) -> dict[str, Any]:
    """How long a text took, as a row of the report."""
    tokens, begun_at, times = served
    if not times:
        return {"tokens": len(tokens)}
    writing = (times[-1] - times[0]) / max(1, len(times) - 1)
    return {
        "tokens": len(tokens),
        "ttft_ms": round((times[0] - begun_at) * 1e3, 2),
        "ms_per_token": round(writing * 1e3, 3),
    }


def logged_slots(log: Path, settings: Settings, dtype: torch.dtype) -> dict[str, Any]:
    """How many KV slots the verifier took, by its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.split(SLOTS)[0].split()[-1] for line in lines if SLOTS in line]
    slots = int(found[-1]) if found else 0
    gib = slots * kv_bytes(settings.shape, dtype) / 2**30
    return {"slots": slots, "kv_gib": round(gib, 3), "right": slots > 0}
