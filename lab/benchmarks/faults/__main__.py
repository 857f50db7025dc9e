"""Runs hundreds of faults on real processes, and compares every text with the text without faults.

    python -m lab.benchmarks.faults --faults 1000 --seed 1 --json

Two verifiers behind links with faults, a daemon, and clients that resume their streams.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lab.bench.report import finish, parser_of, table
from lab.benchmarks.faults.draws import RESTARTS, WEIGHTS, draw_job
from lab.benchmarks.faults.run import Result, RunSettings, run
from lab.benchmarks.faults.stage import RealStage
from lab.demo_models import TARGET_DIR
from training.demo_pair import DRAFT_GGUF
from training.prompts import bundled


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 after a violation."""
    options = _parse(arguments)
    logging.getLogger("simulator.proxy").setLevel(
        logging.ERROR
    )  # it warns of every verifier that is not there
    with tempfile.TemporaryDirectory(prefix="forerun-faults-") as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(_run(options, place))
    report = {**asdict(result), "step_floor_ms": options.step_floor, "deterministic": options.deterministic}
    finish(options, report, _lines(result))
    return 1 if result.violation else 0


async def _run(options: argparse.Namespace, folder: Path) -> Result:
    faults, first, gap = options.faults, options.first, options.mean_gap
    settings = RunSettings(faults, options.seed, first, options.clients, gap, exact=options.deterministic)
    prompts = tuple(bundled())
    jobs = tuple(draw_job(options.seed, number, prompts) for number in range(options.jobs))
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:8.1f} s  {line}", file=sys.stderr, flush=True)

    models = options.target, options.draft
    async with RealStage(folder, options.step_floor, options.deterministic, *models) as stage:
        tell("verifiers and daemon serve")
        for kind in stage.lacking:
            tell(f"no faults of kind {kind}: this machine lacks the program")
        factors = {**dict.fromkeys(RESTARTS, options.restarts), **dict.fromkeys(stage.lacking, 0.0)}
        kinds = {kind: weight * factors.get(kind, 1.0) for kind, weight in WEIGHTS.items()}
        return await run(stage, jobs, replace(settings, weights=kinds), tell)


def _lines(result: Result) -> list[str]:
    lines = [
        f"{result.faults} faults in {result.seconds:.0f} s, {result.texts} texts of {result.tokens} tokens "
        f"compared, {result.texts_taken_up} of them taken up again {result.taken_up} times",
        *([f"{result.texts_rounded} texts differ by rounding"] if not result.settings.exact else []),
        *table([{"fault": kind, **row} for kind, row in result.recovery.items()]),
    ]
    if result.violation:
        settings = result.settings
        lines += [
            f"VIOLATION at fault {result.at_fault}: {result.violation}",
            f"again: python -m lab.benchmarks.faults --seed {settings.seed} --from {settings.first} "
            f"--faults {result.at_fault + 1}",
        ]
    return lines


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("faults", __doc__)
    option = parser.add_argument
    option("--faults", type=int, default=1000, metavar="N", help="last fault's number (%(default)s)")
    option("--from", dest="first", type=int, default=1, metavar="N", help="first fault's number")
    option("--seed", type=int, default=1)
    option("--jobs", type=int, default=24, metavar="N", help="different texts (%(default)s)")
    option("--clients", type=int, default=6, metavar="N")
    option("--mean-gap", type=float, default=1.0, metavar="S", help="mean gap between faults (%(default)s)")
    option("--restarts", type=float, default=1.0, metavar="X", help="factor of kills and stops (%(default)s)")
    option("--step-floor", type=float, default=15.0, metavar="MS")
    option("--target", default=str(TARGET_DIR), metavar="PATH", help="folder or GGUF file (%(default)s)")
    option("--draft", default=str(DRAFT_GGUF), metavar="FILE", help="GGUF file (%(default)s)")
    option("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    option("--keep", type=Path, metavar="FOLDER", help="folder that keeps the processes' logs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
