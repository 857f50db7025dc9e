"""Measures our packed step beside a plain transformers forward, and the deterministic step.

    python -m lab.benchmarks.verify_step --json
    python -m lab.benchmarks.verify_step --deterministic --threads 1 --repeats 20

Plain is the same model with transformers' own sdpa attention and a DynamicCache that holds the context; it
computes a chain and makes no choice. Ours computes a chain or a tree, checks the plan and makes the choices.
With `--deterministic`, steps of several sessions on the deterministic engine stand beside the ordinary
engine's. Both sides run in turns in one process. Times are medians; the ratio of the smallest times says more
on a machine with other work.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.deterministic.exact_engine import ExactEngine
from cloud_verifier.engine.deterministic.tiles import TILE_ROWS
from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from cloud_verifier.engine.torch_engine import TorchEngine
from lab.bench.report import carry_out, finish, parser_of, table
from lab.benchmarks.plans import SAMPLINGS, item_of, sampled
from lab.demo_models import TARGET_DIR

ROWS = (1, 4, 8, 16)
EXACT_SHAPES = ((1, 1), (1, 8), (1, 16), (16, 1), (16, 8), (1, 256))
"""Sessions, and rows of each: streaming, drafts, a crowd of both, and a prompt's chunk."""

WARM_UP = 5


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Holds the settings of a measurement."""

    target: str  # folder of the model
    context: int = 256  # tokens before the rows
    repeats: int = 60  # timed runs of each side
    threads: int = 1  # of torch
    dtype: str = "float32"  # as transformers names it; "auto" = as stored
    rows: tuple[int, ...] = ROWS
    tile_rows: int = TILE_ROWS


@dataclass(frozen=True, slots=True)
class Measurement:
    """Holds one comparison. Times in seconds, medians."""

    shape: str  # chain, tree, or sessions x rows
    sampling: str  # of `plans.SAMPLINGS`
    num_rows: int  # of each session
    plain_time: float  # of transformers, or of the ordinary engine
    packed_time: float  # of the packed step, or of the deterministic one
    ratio: float  # packed over plain
    least_ratio: float  # of the smallest times


@torch.inference_mode()
def measure(plain: PreTrainedModel, packed: TargetModel, settings: StepSettings) -> list[Measurement]:
    """Compare two instances of one model: `plain` as transformers runs it, `packed` as the engine does."""
    engine = TorchEngine(packed, 2 * settings.context + 64)
    engine.prepare_grammars()
    samplings = {name: each for name, each in SAMPLINGS.items() if engine.info.grammars or not each.grammar}
    random = np.random.default_rng(0)
    context = random.integers(engine.info.vocab_size, size=settings.context).astype(np.int32)
    slots = random.permutation(engine.info.num_slots).astype(np.int32)
    held, free = slots[: len(context)], slots[len(context) :]
    engine.evaluate(StepPlan((item_of(0, context, slots[:0], held, range(-1, len(context) - 1)),)))
    cache = DynamicCache(config=plain.config)
    plain(input_ids=torch.from_numpy(context)[None].long(), past_key_values=cache, use_cache=True)
    results: list[Measurement] = []
    for num_rows in settings.rows:
        tokens = random.integers(engine.info.vocab_size, size=num_rows).astype(np.int32)
        ids = torch.from_numpy(tokens)[None].long()

        def forward(ids: torch.Tensor = ids, num_rows: int = num_rows) -> Callable[[], object]:
            plain(ids, past_key_values=cache, use_cache=True)
            return partial(cache.crop, -num_rows)

        for shape, parents in (("chain", range(-1, num_rows - 1)), ("tree", _tree(num_rows))):
            item = item_of(0, tokens, held, free[:num_rows], parents)
            for name, sampling in samplings.items():
                plan = StepPlan((sampled(item, sampling, context),))
                both = (forward, partial(engine.evaluate, plan))
                results.append(_compare(shape, name, num_rows, both, settings.repeats))
    return results


@torch.inference_mode()
def measure_exact(
    settings: StepSettings, shapes: Sequence[tuple[int, int]] = EXACT_SHAPES
) -> list[Measurement]:
    """Compare the deterministic engine with the ordinary one, shape by shape."""
    most = max(sessions * (settings.context + rows) for sessions, rows in shapes)
    default = TorchEngine(load_target(settings.target, dtype=settings.dtype), most)
    exact = ExactEngine(
        load_target(settings.target, dtype=settings.dtype), most, tile_rows=settings.tile_rows
    )
    ratios, random = [], np.random.default_rng(0)
    for sessions, rows in shapes:
        slots = random.permutation(most).astype(np.int32)
        items = []
        for session in range(sessions):  # below prefixes that were never written: zeros cost the same
            own = slots[session * (settings.context + rows) :][: settings.context + rows]
            tokens = random.integers(default.info.vocab_size, size=rows).astype(np.int32)
            held, free = own[: settings.context], own[settings.context :]
            items.append(item_of(session, tokens, held, free, range(-1, rows - 1)))
        plan = StepPlan(tuple(items))
        both = (partial(default.evaluate, plan), partial(exact.evaluate, plan))
        ratios.append(_compare(f"{sessions} x {rows}", "greedy", rows, both, settings.repeats))
    return ratios


def _compare(
    shape: str, sampling: str, num_rows: int, both: tuple[Callable[[], Any], Callable[[], Any]], repeats: int
) -> Measurement:
    """Time both in turns. A function that one of them returns is called after it, and not timed."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + WARM_UP):
        for run, seconds in zip(both, times, strict=True):
            begun_at = time.perf_counter()
            after = run()
            seconds.append(time.perf_counter() - begun_at)
            if callable(after):
                after()
    plain, packed = times[0][WARM_UP:], times[1][WARM_UP:]
    medians = statistics.median(plain), statistics.median(packed)
    return Measurement(shape, sampling, num_rows, *medians, medians[1] / medians[0], min(packed) / min(plain))


def _tree(num_rows: int) -> list[int]:
    """Parents of a binary tree in breadth-first order; row 0 follows the prefix."""
    return [(row - 1) // 2 if row else -1 for row in range(num_rows)]


def _load(target: str, dtype: str) -> PreTrainedModel:
    """Load transformers' own side. Each side has a model, whose configuration names the attention."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        target, dtype=dtype, use_safetensors=True, attn_implementation="sdpa"
    )
    model.eval()
    return model


def _run(options: argparse.Namespace) -> None:
    names = ("target", "context", "repeats", "threads", "dtype", "tile_rows")
    settings = StepSettings(**{name: getattr(options, name) for name in names})
    torch.set_num_threads(settings.threads)
    if options.deterministic:
        results = measure_exact(settings)
    else:
        packed = load_target(settings.target, dtype=settings.dtype)
        results = measure(_load(settings.target, settings.dtype), packed, settings)
    rows = [asdict(result) for result in results]
    about = {**asdict(settings), "deterministic": options.deterministic, "torch": torch.__version__}
    finish(options, {**about, "machine": platform.machine(), "results": rows}, table(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("verify_step", __doc__)
    option, default = parser.add_argument, StepSettings(str(TARGET_DIR))
    option("--target", default=default.target, help="folder of the model")
    option("--context", type=int, default=default.context, help="tokens before the rows (%(default)s)")
    option("--repeats", type=int, default=default.repeats, help="timed runs of each side (%(default)s)")
    option("--threads", type=int, default=default.threads, help="torch threads (%(default)s)")
    option("--dtype", default=default.dtype, help="float32, bfloat16 or auto, as stored (%(default)s)")
    option("--deterministic", action="store_true", help="compare the deterministic engine")
    option("--tile-rows", type=int, default=default.tile_rows, help="rows of a tile (%(default)s)")
    parser.set_defaults(run=_run)
    return carry_out("verify_step", parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
