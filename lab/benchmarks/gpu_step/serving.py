"""Runs a real `forerun verify` with the random model, and sends it prompts over gRPC."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import UnavailableError
from common.sampling import SamplingParams
from lab.benchmarks.gpu_step.rates import RateRun
from lab.benchmarks.gpu_step.settings import GpuSettings, kv_bytes
from lab.benchmarks.processes import LoggedProcess

ROOT = Path(__file__).resolve().parents[3]
STOP_TIME = 30.0
"""Seconds that the verifier has to end."""

SLOTS = " KV slots of "
"""Stands behind the number of slots in the verifier's log."""

NEEDED = ("cloud_verifier.server.grpc_server", "edge_client.network.channel", "forerun.commands.verify")


def missing() -> str:
    """Return why a verifier cannot run here, by the error of an import; empty if it can."""
    for name in NEEDED:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - generated code refuses an old gRPC by an error of its own
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
    return ""


def own_text(engine: TorchEngine, prompt: list[int], settings: GpuSettings) -> list[int]:
    """Write a text with the scheduler and `engine` in this process."""
    run = RateRun(engine, replace(settings, text_tokens=settings.served_tokens), [prompt])
    run.run()
    return run.written()[0][len(prompt) :]


def words(vocab_size: int) -> tuple[bytes, ...]:
    """Return the tokenizer's words, by id."""
    return tuple(f"token{number}".encode() for number in range(vocab_size))


@contextmanager
def saved(model: TargetModel, scratch: Path | None) -> Iterator[Path]:
    """Make a folder for `forerun verify --model` until the block ends: configuration, weights, and a
    tokenizer of made-up words. Raises `OSError` if the disk has no room for it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    with TemporaryDirectory(dir=scratch, prefix="gpu_step-") as name:
        needed, free = model.weight_bytes, shutil.disk_usage(name).free
        if free < 1.05 * needed:
            raise OSError(f"{name} has {free / 1e9:.1f} GB free, and the model takes {needed / 1e9:.1f} GB")
        cast(Any, model.module).save_pretrained(name, max_shard_size="4GB")
        table = {word.decode(): number for number, word in enumerate(words(model.vocab_size))}
        tokenizer = Tokenizer(models.WordLevel(table, unk_token=next(iter(table))))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(name)
        yield Path(name)


@asynccontextmanager
async def verifier(folder: Path, device: torch.device, patience: float, log: Path) -> AsyncIterator[str]:
    """Run `forerun verify` on a port of its own until the block ends; give its address. Raises
    `UnavailableError` with its last output if it does not come up within `patience` seconds."""
    command = ["verify", "--model", str(folder), "--device", device.type, "--listen", "127.0.0.1:0", "--json"]
    command += ["--log-level", "info", *(["--threads", "1"] if device.type == "cpu" else [])]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    child = LoggedProcess("verifier", *command, environment={"PYTHONPATH": paths}, log=log, speaks=True)
    try:
        await child.spawn()
        yield (await child.read(patience))["listening"]
    except UnavailableError as error:
        raise UnavailableError(f"{error}: {' / '.join(_lines(log)[-3:])}") from error
    finally:
        await child.stop(STOP_TIME)


async def ask(
    address: str, prompt: Sequence[int], sampling: SamplingParams, fingerprint: bytes
) -> tuple[list[int], dict[str, Any]]:
    """Return the verifier's text after `prompt` to an edge that drafts nothing, and its seconds."""
    from edge_client.core.effects import SessionConfig
    from edge_client.core.session import EdgeSession
    from edge_client.network.channel import VerifierChannel
    from edge_client.network.generation import Generation
    from schemes.policies.tree import TreePolicy

    config = SessionConfig(tuple(prompt), sampling, fingerprint, patience=None)
    times: list[float] = []
    async with VerifierChannel(address) as channel:
        begun_at = time.perf_counter()
        run = Generation(EdgeSession(config, TreePolicy()), channel, None)
        async for text in run:
            times += [time.perf_counter()] * len(text.tokens)
    tokens = list(run.session.text)
    if not times:
        return tokens, {"tokens": len(tokens)}
    writing = (times[-1] - times[0]) / max(1, len(times) - 1)
    took = {"ttft_ms": round((times[0] - begun_at) * 1e3, 2), "ms_per_token": round(writing * 1e3, 3)}
    return tokens, {"tokens": len(tokens), **took}


def logged_slots(log: Path, settings: GpuSettings, dtype: torch.dtype) -> dict[str, Any]:
    """Read the verifier's KV slots from its log."""
    slot_counts = [line.split(SLOTS)[0].split()[-1] for line in _lines(log) if SLOTS in line]
    slots = int(slot_counts[-1]) if slot_counts else 0
    gib = slots * kv_bytes(settings.shape, dtype) / 2**30
    return {"slots": slots, "kv_gib": round(gib, 3), "right": slots > 0}


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
