"""The command line: the run, and the report as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.draws import draw_job
from benchmarks.faults.run import Result, RunSettings, run
from benchmarks.faults.stage import Processes, StageSettings
from forerun.prompts import bundled


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 after a violation."""
    options = _parse(arguments)
    logging.getLogger("link").setLevel(logging.ERROR)  # it warns of every verifier that is not there
    with tempfile.TemporaryDirectory(prefix="forerun-faults-") as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(_run(options, place))
    report = {**asdict(result), "step_floor_ms": options.step_floor, "deterministic": options.deterministic}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1) if options.json else _words(result))
    return 1 if result.violation else 0


async def _run(options: argparse.Namespace, folder: Path) -> Result:
    settings = RunSettings(options.faults, options.seed, options.first, options.clients, options.mean_gap)
    prompts = tuple(bundled())
    jobs = tuple(draw_job(options.seed, number, prompts) for number in range(options.jobs))
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:8.1f} s  {line}", file=sys.stderr, flush=True)

    stage_settings = StageSettings(folder, options.step_floor, options.deterministic)
    async with Processes(stage_settings) as stage:
        tell("verifiers and daemon serve")
        return await run(stage, jobs, settings, tell)


def _words(result: Result) -> str:
    lines = [
        f"{result.faults} faults in {result.seconds:.0f} s, {result.texts} texts of {result.tokens} tokens "
        f"compared, {result.texts_taken_up} of them taken up again {result.taken_up} times"
    ]
    for kind, row in result.recovery.items():
        lines.append(f"{kind:12} {row['faults']:5}  p50 {row['p50_s']} s  p95 {row['p95_s']} s")
    if result.violation:
        first = result.settings.first
        lines.append(
            f"VIOLATION at fault {result.at_fault}: {result.violation}\n"
            f"again: python -m benchmarks.faults --seed {result.settings.seed} --from {first} "
            f"--faults {result.at_fault + 1}"
        )
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000, metavar="N", help="up to fault N (%(default)s)")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="N", help="begin with fault N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=24, metavar="N", help="different texts (%(default)s)")
    parser.add_argument("--clients", type=int, default=6, metavar="N")
    parser.add_argument(
        "--mean-gap", type=float, default=1.0, metavar="S", help="between two faults (%(default)s)"
    )
    parser.add_argument("--step-floor", type=float, default=15.0, metavar="MS")
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the processes' logs there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there, too")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
