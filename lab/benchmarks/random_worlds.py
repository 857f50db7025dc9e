"""Draws worlds at random and compares the verifier's own drafter, the device's, and both.

    python -m lab.benchmarks.random_worlds [--worlds 500] [--json] [--out FILE]

In each world the same sessions run in four ways in virtual time: server streaming; guesses of the verifier's
own drafter alone; Forerun without that drafter; Forerun with it. Useless links, slow or wrong drafts, dear or
poor heads and crowds are among the worlds. What counts is the last way over the best of the other three.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from common.errors import UserError
from lab.bench.report import finish, progress_bar, table
from lab.benchmarks.reports import carry_out, parser_of
from simulator.drafts import BetaDraft
from simulator.experiment import Pool
from simulator.figures import pace
from simulator.heads import HeadsSpec
from simulator.link_spec import LinkSpec
from simulator.schemes import FORERUN, SERVER_STREAMING
from simulator.world import DeviceSpec, VerifierSpec, World

HEADS_ALONE, BOTH = "heads alone", "both ends"
TOLERATED = 1.02
TEXTS = 3
"""Sessions of each way, one after the other. The pace of a single one differs by 3 % from text to text."""


def random_world(number: int) -> World:
    """Draw world `number`, without heads."""
    draw = random.Random(number)  # not security

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    step, draft = between(0.004, 0.120), between(0.002, 0.150)
    link = LinkSpec(
        rtt=draw.uniform(0.0, 0.4),
        jitter=draw.choice((0.0, 0.0, 0.002, 0.010, 0.030)) * draw.random(),
        loss=draw.choice((0.0, 0.0, 0.005, 0.02)),
    )
    per_node = draft * draw.uniform(0.03, 0.9)
    verifier = VerifierSpec(step, step * draw.choice((0.0005, 0.002, 0.01, 0.03)))
    agreement = BetaDraft(mean=draw.uniform(0.0, 0.98))
    second = draw.choice((0.0, 3.7)) * draft  # kernels for several rows may be dear for two
    rows = ((1, draft), (2, second), (4, 1.5 * second), (8, 1.6 * second)) if second else ()
    read = draw.choice((0.0, 0.1, 0.3)) * draft  # a token of a long prompt
    device = DeviceSpec(
        draft,
        per_node,
        draft_times=rows,
        read_times=((1, draft), (32, draft + 31 * read)) if read else (),
        wake_time=draw.choice((0.0, 0.5)) * draft,
    )
    return World(link, device, verifier, agreement, tokens=400, seed=number + 1)


def random_heads(number: int) -> HeadsSpec:
    """Draw the heads of world `number`."""
    draw, step = random.Random(f"heads {number}"), random_world(number).verifier.step_time  # not security
    first, fall = draw.uniform(0.1, 0.9), draw.uniform(0.85, 1.0)
    return HeadsSpec(
        tuple(first * fall**level for level in range(draw.choice((1, 3, 5, 8)))),
        time=step * draw.choice((0.0, 0.02, 0.1)),
        time_per_level=step * draw.choice((0.005, 0.03, 0.1, 0.3)),
        k=draw.choice((0.5, 2.0, 8.0)),
        likeness=draw.random(),
    )


def ways(number: int) -> dict[str, tuple[str, World]]:
    """Return the scheme and the world of each way to write the sessions of world `number`."""
    world = random_world(number)
    clients = random.Random(f"clients {number}").choice((1, 1, 1, 2, 5))  # not security
    without = replace(world, verifier=world.verifier.with_product_limits(), clients=clients)
    heads = replace(without, verifier=replace(without.verifier, heads=random_heads(number)))
    return {
        SERVER_STREAMING: (SERVER_STREAMING, without),
        HEADS_ALONE: (SERVER_STREAMING, heads),
        FORERUN: (FORERUN, without),
        BOTH: (FORERUN, heads),
    }


def measured(numbers: Sequence[int], workers: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each world: ms per token by way, and the last over the best of the others."""
    jobs = [
        (scheme, replace(world, seed=world.seed + 10_000 * text))
        for number in numbers
        for scheme, world in ways(number).values()
        for text in range(TEXTS)
    ]
    names = list(ways(0))
    with Pool(workers, len(jobs)) as pool, progress_bar("runs") as show:
        results = pool.map(jobs)
        for place, number in enumerate(numbers):
            runs = {name: [each.as_run() for _ in range(TEXTS) for each in next(results)] for name in names}
            times = {name: pace(texts) for name, texts in runs.items()}
            show(len(names) * TEXTS * (place + 1), len(jobs), f"world {number}")
            ratio = times[BOTH] / min(times[name] for name in names if name != BOTH)
            yield {
                "world": number,
                **{name: round(ms, 3) for name, ms in times.items()},
                "ratio": round(ratio, 4),
            }


def run(options: argparse.Namespace) -> None:
    if options.worlds < 1:
        raise UserError(f"--worlds is {options.worlds}; it must be 1 or more")
    rows = list(measured(range(options.first, options.first + options.worlds), options.workers))
    ratios = [row["ratio"] for row in rows]
    summary = {
        "worlds": len(rows),
        "mean_ratio": round(fmean(ratios), 4),
        "worst_ratio": max(ratios),
        "above_tolerance": sum(ratio > TOLERATED for ratio in ratios),
        "mean_over_streaming": round(fmean(row[BOTH] / row[SERVER_STREAMING] for row in rows), 4),
        "mean_over_heads_alone": round(fmean(row[BOTH] / row[HEADS_ALONE] for row in rows), 4),
        "mean_over_forerun": round(fmean(row[BOTH] / row[FORERUN] for row in rows), 4),
    }
    worst = sorted(rows, key=lambda row: -float(row["ratio"]))[:10]
    finish(options, {**summary, "results": rows}, [*table(worst), "", *table([summary])])


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("random_worlds", __doc__)
    option = parser.add_argument
    option("--worlds", type=int, default=500, metavar="N", help="number of worlds (%(default)s)")
    option("--first", type=int, default=0, metavar="I", help="number of the first world (%(default)s)")
    option("--workers", type=int, default=0, metavar="N", help="processes (default: one a processor)")
    parser.set_defaults(run=run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("random_worlds", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
