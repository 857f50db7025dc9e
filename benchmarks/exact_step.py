"""What the deterministic engine costs: its steps beside the ordinary engine's, of the same rows.

Run `python -m benchmarks.exact_step --threads 1`. Both engines hold the same sessions of equal context; steps
run in turns in one process. A ratio is that of the medians; the smallest times are given, too, as they say
more on a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

import demo_models
from cloud_verifier.core.target import StepItem, StepPlan
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.exact import ExactEngine
from cloud_verifier.engine.exact_tiles import TILE_ROWS
from cloud_verifier.engine.transformers_adapter import load_target
from common.sampling import SamplingParams

SHAPES = ((1, 1), (1, 8), (1, 16), (16, 1), (16, 8), (1, 256))
"""Sessions, and rows of each: streaming, drafts, a crowd of both, and a prompt's chunk."""

WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured."""

    target: str = str(demo_models.TARGET_DIR)
    dtype: str = "float32"
    context: int = 256  # tokens before the rows
    repeats: int = 30  # timed steps of each engine
    num_threads: int = 1  # of torch
    tile_rows: int = TILE_ROWS


@dataclass(frozen=True, slots=True)
class Measurement:
    """One shape. Times in seconds."""

    sessions: int
    rows: int  # of each session
    default_time: float  # median
    exact_time: float
    ratio: float  # of the medians
    least_ratio: float  # of the smallest times


@torch.inference_mode()
def measure(settings: Settings, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[Measurement]:
    """Compare the engines, shape by shape."""
    most = max(sessions * (settings.context + rows) for sessions, rows in shapes)
    engines = [
        TorchEngine(load_target(settings.target, dtype=settings.dtype), most),
        ExactEngine(load_target(settings.target, dtype=settings.dtype), most, tile_rows=settings.tile_rows),
    ]
    return [_measure_shape(engines, settings, sessions, rows) for sessions, rows in shapes]


def _measure_shape(
    engines: Sequence[TorchEngine], settings: Settings, sessions: int, rows: int
) -> Measurement:
    plan = _plan(engines[0].info.vocab_size, engines[0].info.num_slots, settings.context, sessions, rows)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(settings.repeats + WARM_UP):
        for engine, found in zip(engines, times, strict=True):
            found.append(_time(partial(engine.evaluate, plan)))
    default, exact = times[0][WARM_UP:], times[1][WARM_UP:]
    medians = statistics.median(default), statistics.median(exact)
    return Measurement(sessions, rows, *medians, medians[1] / medians[0], min(exact) / min(default))


def _plan(vocab_size: int, num_slots: int, context: int, sessions: int, rows: int) -> StepPlan:
    """Chains below prefixes that nobody wrote: zeros cost what other numbers cost."""
    random = np.random.default_rng(0)
    slots = random.permutation(num_slots).astype(np.int32).reshape(-1)
    items = []
    for session in range(sessions):
        own = slots[session * (context + rows) :][: context + rows]
        items.append(
            StepItem(
                session=session,
                prefix_slots=own[:context],
                tokens=random.integers(vocab_size, size=rows).astype(np.int32),
                positions=np.arange(context, context + rows, dtype=np.int32),
                parents=np.arange(-1, rows - 1, dtype=np.int32),
                slots=own[context:],
                outputs=np.arange(rows, dtype=np.int32),
                sampling=SamplingParams(),
            )
        )
    return StepPlan(tuple(items))


def _time(run: Callable[[], object]) -> float:
    begun_at = time.perf_counter()
    run()
    return time.perf_counter() - begun_at


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    settings, as_json = _parse(arguments)
    torch.set_num_threads(settings.num_threads)
    results = measure(settings)
    report = {**asdict(settings), "torch": torch.__version__, "results": [asdict(one) for one in results]}
    print(json.dumps(report, indent=2) if as_json else _table(results))
    return 0


def _parse(arguments: Sequence[str] | None) -> tuple[Settings, bool]:
    default = Settings()
    parser = argparse.ArgumentParser(description="steps of the deterministic engine against the ordinary one")
    option = parser.add_argument
    option("--target", default=default.target, help="folder of the model (%(default)s)")
    option("--dtype", default=default.dtype, help="float32, bfloat16 or float16 (%(default)s)")
    option("--context", type=int, default=default.context, help="tokens before the rows (%(default)s)")
    option("--repeats", type=int, default=default.repeats, help="timed steps of each (%(default)s)")
    option("--threads", type=int, default=default.num_threads, help="torch threads (%(default)s)")
    option("--tile-rows", type=int, default=default.tile_rows, help="rows of a tile (%(default)s)")
    option("--json", action="store_true", help="print a JSON report")
    given = parser.parse_args(arguments)
    names = (given.target, given.dtype, given.context, given.repeats, given.threads, given.tile_rows)
    return Settings(*names), given.json


def _table(results: Sequence[Measurement]) -> str:
    lines = ["sessions  rows each  default ms  deterministic ms  ratio  of smallest"]
    for one in results:
        times = f"{one.default_time * 1e3:10.1f}  {one.exact_time * 1e3:16.1f}"
        lines.append(f"{one.sessions:8}  {one.rows:9}  {times}  {one.ratio:5.2f}  {one.least_ratio:11.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
