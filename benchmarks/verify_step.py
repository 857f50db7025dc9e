"""What our packed step costs beside a plain transformers forward with the same rows and the same context.

Run `python -m benchmarks.verify_step --json`. Plain is the same model with transformers' own sdpa attention
and a DynamicCache that holds the context; it computes a chain and makes no choice. Ours computes a chain or a
tree, checks the plan and makes the choices. Both run in turns in one process; times are medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.transformers_adapter import TargetModel
from common.sampling import SamplingParams

DEFAULT_TARGET = Path("demo_models/target")
ROWS = (1, 4, 8, 16)
WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured."""

    target: str  # folder of the model; a random one of the demo target's shape if it holds no weights
    context: int = 256  # tokens before the rows
    repeats: int = 60  # timed runs of each side
    num_threads: int = 1  # of torch
    dtype: str = "float32"  # as transformers names it; "auto" = as stored
    rows: tuple[int, ...] = ROWS


@dataclass(frozen=True, slots=True)
class Measurement:
    """One comparison. Times in seconds, medians."""

    shape: str  # chain or tree
    num_rows: int
    plain_time: float
    packed_time: float
    ratio: float  # packed over plain


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    settings, as_json = _parse(arguments)
    torch.set_num_threads(settings.num_threads)
    plain, packed, name = _models(settings.target, settings.dtype)
    results = measure(plain, packed, settings)
    report = {
        "model": name,
        "parameters": sum(weight.numel() for weight in plain.parameters()),
        "context": settings.context,
        "repeats": settings.repeats,
        "threads": settings.num_threads,
        "dtype": str(plain.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "results": [asdict(result) for result in results],
    }
    print(json.dumps(report, indent=2) if as_json else _table(name, results))
    return 0


@torch.inference_mode()
def measure(plain: PreTrainedModel, packed: PreTrainedModel, settings: Settings) -> list[Measurement]:
    """Compare two instances of one model: `plain` as transformers runs it, `packed` as the engine does."""
    engine = TorchEngine(TargetModel("packed", packed), 2 * settings.context + 64)
    random = np.random.default_rng(0)
    context = random.integers(engine.info.vocab_size, size=settings.context).astype(np.int32)
    slots = random.permutation(engine.info.num_slots).astype(np.int32)
    engine.evaluate(_plan(context, slots[:0], slots[: len(context)], range(-1, len(context) - 1)))
    cache = DynamicCache(config=plain.config)
    plain(input_ids=torch.from_numpy(context)[None].long(), past_key_values=cache, use_cache=True)
    results: list[Measurement] = []
    for num_rows in settings.rows:
        tokens = random.integers(engine.info.vocab_size, size=num_rows).astype(np.int32)
        free = slots[len(context) : len(context) + num_rows]
        ids = torch.from_numpy(tokens)[None].long()
        for shape, parents in (("chain", range(-1, num_rows - 1)), ("tree", _tree(num_rows))):
            plan = _plan(tokens, slots[: len(context)], free, parents)
            plain_times: list[float] = []
            packed_times: list[float] = []
            for _ in range(settings.repeats + WARM_UP):
                plain_times.append(_time(partial(plain, ids, past_key_values=cache, use_cache=True)))
                cache.crop(-num_rows)
                packed_times.append(_time(partial(engine.evaluate, plan)))
            results.append(_compare(shape, num_rows, plain_times[WARM_UP:], packed_times[WARM_UP:]))
    return results


def _time(run: Callable[[], object]) -> float:
    begun_at = time.perf_counter()
    run()
    return time.perf_counter() - begun_at


def _compare(shape: str, num_rows: int, plain: Sequence[float], packed: Sequence[float]) -> Measurement:
    plain_time, packed_time = statistics.median(plain), statistics.median(packed)
    return Measurement(shape, num_rows, plain_time, packed_time, packed_time / plain_time)


def _tree(num_rows: int) -> list[int]:
    """Parents of a binary tree in breadth-first order; row 0 follows the prefix."""
    return [(row - 1) // 2 if row else -1 for row in range(num_rows)]


def _plan(tokens: IntArray, prefix: IntArray, slots: IntArray, parents: Sequence[int]) -> StepPlan:
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    item = StepItem(
        session=0,
        prefix_slots=prefix,
        tokens=tokens,
        positions=np.array(depths, np.int32) + np.int32(len(prefix)),
        parents=np.array(parents, np.int32),
        slots=slots,
        outputs=np.arange(len(tokens), dtype=np.int32),
        sampling=SamplingParams(),
    )
    return StepPlan((item,))


def _models(target: str, dtype: str) -> tuple[PreTrainedModel, PreTrainedModel, str]:
    """Two instances of one model: for plain transformers, and for the engine."""
    if (Path(target) / "model.safetensors").exists():
        return _load(target, dtype), _load(target, dtype), target
    return _random_model(), _random_model(), "random weights of the demo target's shape"


def _load(target: str, dtype: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        target, dtype=dtype, use_safetensors=True, attn_implementation="sdpa"
    )
    model.eval()
    return model


def _random_model() -> PreTrainedModel:
    """The demo target's shape; a configuration of its own, because it holds the attention implementation."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=3072,
        hidden_size=256,
        intermediate_size=896,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("sdpa")
    model.eval()
    return model


def _parse(arguments: Sequence[str] | None) -> tuple[Settings, bool]:
    parser = argparse.ArgumentParser(description="packed step against plain transformers forward")
    parser.add_argument("--target", default=str(DEFAULT_TARGET), help="folder of the model")
    parser.add_argument("--context", type=int, default=256, help="tokens before the rows")
    parser.add_argument("--repeats", type=int, default=60, help="timed runs of each side")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or auto (as stored)")
    parser.add_argument("--json", action="store_true", help="print a JSON report")
    given = parser.parse_args(arguments)
    return Settings(given.target, given.context, given.repeats, given.threads, given.dtype), given.json


def _table(name: str, results: Sequence[Measurement]) -> str:
    lines = [f"target: {name}", "shape  rows  plain ms  packed ms  ratio"]
    for result in results:
        times = f"{result.plain_time * 1e3:8.2f}  {result.packed_time * 1e3:9.2f}  {result.ratio:5.2f}"
        lines.append(f"{result.shape:5}  {result.num_rows:4}  {times}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
