"""Measures the engine of GGUF targets beside plain llama_decode.

    taskset -c 0 python -m lab.benchmarks.llama_step --threads 1
    taskset -c 0 python -m lab.benchmarks.llama_step --threads 1 \\
        --target TARGET.gguf

`steps`: a packed step with its choices, over one llama_decode of the same rows. `rates`: tokens a second of N
sessions in one scheduler, without a network. `price`: steps of an engine whose texts repeat themselves over
those of one with --no-deterministic. Without `--target` the bundled target is converted to Q8_0 first. All
sides run in turns in one process. The ratio of the smallest times says more on a machine with other work.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from cloud_verifier.core.effects import Reply
from cloud_verifier.core.engine_protocol import IntArray, StepItem, StepPlan
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine, open_runtime
from common.llama.runtime import LlamaRuntime
from common.messages import Commit, Open
from common.sampling import SamplingParams
from lab.bench.report import Machine, finish, table
from lab.benchmarks.plans import SAMPLINGS, item_of, sampled
from lab.benchmarks.reports import carry_out, parser_of

SHAPES = ((1, 1), (1, 8), (8, 1), (8, 8))
"""Sessions, and rows of each: streaming, drafts, a crowd of both."""

RATES = (1, 2, 4, 8)
PRICED_CONTEXTS, PRICED_ROWS = (256, 4096), (1, 4)
WARM_UP = 3
CHUNK = 256


@dataclass(frozen=True, slots=True)
class LlamaStepSettings:
    """Holds the settings of a measurement."""

    target: str  # GGUF file
    context: int = 128  # tokens of each session before the rows
    repeats: int = 30  # timed runs of each side
    threads: int = 1
    tokens: int = 96  # of each text of `rates`

    @property
    def num_slots(self) -> int:
        most = max(sessions * (self.context + rows) for sessions, rows in SHAPES)
        return most + self.context + 256


@dataclass(frozen=True, slots=True)
class StepRatio:
    """Holds one comparison. Times in seconds, medians."""

    shape: str  # sessions x rows
    sampling: str
    plain_time: float  # of llama_decode
    packed_time: float  # of the engine's step, choices included
    ratio: float
    least_ratio: float  # of the smallest times


@contextmanager
def opened(settings: LlamaStepSettings) -> Iterator[LlamaRuntime]:
    """Open the target, with cells for the largest shape."""
    options = LlamaOptions(threads=settings.threads)
    with open_runtime(settings.target, settings.num_slots, 64, 1024, options) as runtime:
        yield runtime


def measure_steps(settings: LlamaStepSettings) -> list[StepRatio]:
    """Compare steps of every shape and sampling."""
    ratios = []
    with opened(settings) as plain, opened(settings) as packed:
        engine = LlamaEngine(packed, settings.num_slots, name="packed")
        engine.prepare_grammars()
        for sessions, rows in SHAPES:
            random = np.random.default_rng(0)
            tokens = random.integers(plain.num_vocab, size=(sessions, settings.context + rows)).astype(
                np.int32
            )
            _read(plain, tokens[:, : settings.context])
            items = list(_items(engine, tokens, settings.context))
            drawn = tokens[:, settings.context :].ravel().tolist()
            positions = list(range(settings.context, settings.context + rows)) * sessions
            sequences = np.repeat(np.arange(sessions), rows).tolist()

            def decode(
                drawn: list[int] = drawn, positions: list[int] = positions, sequences: list[int] = sequences
            ) -> None:
                plain.batch.fill(drawn, positions, sequences, [1] * len(drawn))
                assert plain.decode() == 0
                plain.logits(1)[0, 0]

            for name, sampling in SAMPLINGS.items():
                pairs = zip(items, tokens, strict=True)
                plan = StepPlan(tuple(sampled(item, sampling, row) for item, row in pairs))
                cut, step = partial(_cut, plain, settings.context), partial(engine.evaluate, plan)
                times = _times(decode, cut, step, settings.repeats)
                alone, step_time = (statistics.median(each) for each in times)
                least = min(times[1]) / min(times[0])
                words = f"{sessions} x {rows}"
                ratios.append(StepRatio(words, name, alone, step_time, step_time / alone, least))
            plain.clear()
            engine.clear()
    return ratios


def _read(runtime: LlamaRuntime, tokens: IntArray) -> None:
    for sequence, row in enumerate(tokens):
        count = len(row)
        runtime.batch.fill(row.tolist(), list(range(count)), [sequence] * count, [0] * count)
        assert runtime.decode() == 0


def _cut(runtime: LlamaRuntime, length: int) -> None:
    for sequence in range(max(sessions for sessions, _ in SHAPES)):
        runtime.seq_remove(sequence, length)


def _items(engine: LlamaEngine, tokens: IntArray, context: int) -> Iterator[StepItem]:
    """Evaluate each session's context, and return the items of the rows after it."""
    slots = np.random.default_rng(1).permutation(engine.info.num_slots).astype(np.int32)
    for session, row in enumerate(tokens):
        own, slots = slots[: len(row)], slots[len(row) :]
        held, free = own[:context], own[context:]
        prompt = item_of(session, row[:context], slots[:0], held, range(-1, context - 1))
        for start in range(0, context, CHUNK):
            part = _part(prompt, start, start + CHUNK)
            part = replace(part, outputs=part.outputs[-1:], prefix_slots=held[:start], prompt_length=context)
            engine.evaluate(StepPlan((part,)))
        yield item_of(session, row[context:], held, free, range(-1, len(free) - 1))


def _times(
    decode: Callable[[], object], cut: Callable[[], None], step: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + WARM_UP):
        for run, seconds in zip((decode, step), times, strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        cut()
    return times[0][WARM_UP:], times[1][WARM_UP:]


def measure_rates(settings: LlamaStepSettings) -> list[dict[str, float]]:
    """Return tokens a second by the number of sessions, and the factor over one session at a time."""
    speeds = list[dict[str, float]]()
    most = max(RATES) * (settings.context + settings.tokens) + 256
    options = LlamaOptions(threads=settings.threads)
    with open_runtime(settings.target, most, 64, 1024, options) as runtime:
        engine = LlamaEngine(runtime, most, name="rates")
        for count in (RATES[0], *RATES):  # the first run warms up
            rate = _rate(engine, count, settings)
            speeds.append({"sessions": count, "tokens_per_second": rate})
            engine.clear()
    first = speeds[1]["tokens_per_second"]
    return [{**row, "factor": row["tokens_per_second"] / first} for row in speeds[1:]]


def _rate(engine: LlamaEngine, count: int, settings: LlamaStepSettings) -> float:
    """Let `count` sessions write their texts at once; tokens a second from the last prompt's end."""
    scheduler = VerifyScheduler(engine.info, SchedulerConfig(prefix_cache=False))
    sampling = SamplingParams(max_tokens=settings.tokens, ignore_eos=True)
    prompts = (
        np.random.default_rng(3).integers(engine.info.vocab_size, size=(count, settings.context)).tolist()
    )
    for key, prompt in enumerate(prompts):
        scheduler.on_open(1 + key, Open(tuple(prompt), sampling, engine.info.fingerprint), 0.0)
    written, began, before = [0] * count, 0.0, 0
    while (plan := scheduler.next_step(time.perf_counter())) is not None:
        scheduler.on_step_done(engine.evaluate(plan), time.perf_counter())
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                written[effect.session - 1] += len(effect.message.tokens)
        if not began and all(written):
            began, before = time.perf_counter(), sum(written)
    return (sum(written) - before) / (time.perf_counter() - began)


def measure_price(settings: LlamaStepSettings) -> list[dict[str, float]]:
    """Compare steps of one session on an engine whose texts repeat themselves with those on one that may
    not."""
    engines = list[LlamaEngine]()
    for deterministic in (None, False):
        options = LlamaOptions(threads=settings.threads, deterministic=deterministic)
        engines.append(load_engine(settings.target, max(PRICED_CONTEXTS) + 256, 64, 1024, options)[0])
    differences = list[dict[str, float]]()
    info, most = engines[0].info, max(PRICED_ROWS)
    for context in (each for each in PRICED_CONTEXTS if each + most <= info.max_positions):
        tokens = np.random.default_rng(4).integers(info.vocab_size, size=context + most)
        items, prompt_times = list[StepItem](), list[float]()
        for engine in engines:
            engine.clear()
            began = time.perf_counter()
            items += _items(engine, tokens[None].astype(np.int32), context)
            prompt_times.append(time.perf_counter() - began)
        for rows in PRICED_ROWS:
            steps = [
                partial(engine.evaluate, StepPlan((_part(item, 0, rows),)))
                for engine, item in zip(engines, items, strict=True)
            ]
            times = _times(steps[0], lambda: None, steps[1], settings.repeats)
            exact, fast = (statistics.median(each) for each in times)
            differences.append(
                {
                    "context": context,
                    "rows": rows,
                    "repeating_time": exact,
                    "fast_time": fast,
                    "ratio": exact / fast,
                    "least_ratio": min(times[0]) / min(times[1]),
                    "prompt_ratio": prompt_times[0] / prompt_times[1],
                }
            )
    for engine in engines:
        engine.runtime.close()
    return differences


def _part(item: StepItem, start: int, stop: int) -> StepItem:
    """Return the item with these rows of its chain alone, each with an output."""
    rows = slice(start, stop)
    count = len(item.tokens[rows])
    return replace(
        item,
        tokens=item.tokens[rows],
        positions=item.positions[rows],
        parents=np.arange(-1, count - 1, dtype=np.int32),
        slots=item.slots[rows],
        outputs=np.arange(count, dtype=np.int32),
    )


def _run(options: argparse.Namespace) -> None:
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        target = options.target
        if not target:
            from lab.demo_models.gguf_export import write_target  # imports torch

            target = str(Path(folder) / "target-q8_0.gguf")
            write_target(Path(target))
        settings = LlamaStepSettings(
            target, options.context, options.repeats, options.threads, options.tokens
        )
        steps = [asdict(each) for each in measure_steps(settings)]
        rates = measure_rates(settings)
        price = measure_price(settings)
    about = {**asdict(settings), "target": Path(target).name, "machine": machine.told()}
    document = {**about, "steps": steps, "rates": rates, "price": price}
    finish(options, document, [*table(steps), "", *table(rates), "", *table(price)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("llama_step", __doc__)
    option, default = parser.add_argument, LlamaStepSettings("")
    option("--target", default="", metavar="FILE", help="GGUF file (default: the bundled target, converted)")
    option("--context", type=int, default=default.context, help="tokens before the rows (%(default)s)")
    option("--repeats", type=int, default=default.repeats, help="timed runs of each side (%(default)s)")
    option("--threads", type=int, default=default.threads, help="threads of llama.cpp (%(default)s)")
    option("--tokens", type=int, default=default.tokens, help="tokens of a text of `rates` (%(default)s)")
    parser.set_defaults(run=_run)
    return carry_out("llama_step", parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
