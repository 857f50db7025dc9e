"""Recordings that the shipped prior is fitted on: the demo pair on prompts that no figure is reported on.

    python -m benchmarks.calibration --out FOLDER
    forerun fit FOLDER/*.jsonl --plot calibration.png --json

The prompts are cut from held-out modules that no bundled prompt comes from. For each temperature the target
continues them, and the draft says before every token what comes next (`forerun record`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from common.errors import ForerunError
from demo_models.corpus import load_split
from demo_models.prompts import PROMPT_LINES, STARTS
from forerun import record
from forerun.cli import build_parser


def tuning_prompts(per_module: int, seed: int = 5) -> list[str]:
    """Beginnings of functions and classes in held-out modules without a bundled prompt."""
    taken = {module for module, _ in STARTS.values()}
    draw = random.Random(seed)
    prompts: list[str] = []
    for module in load_split().held_out:
        lines = module.text.splitlines(keepends=True)
        starts = [
            place
            for place, line in enumerate(lines[:-PROMPT_LINES])
            if line.lstrip().startswith(("def ", "class "))
        ]
        if module.name not in taken:
            chosen = draw.sample(starts, min(per_module, len(starts)))
            prompts += ["".join(lines[place : place + PROMPT_LINES]) for place in chosen]
    return prompts


def make_recordings(options: argparse.Namespace) -> None:
    """One file per temperature. Raises the `ForerunError` of `forerun record`."""
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = options.out / "prompts.json"
    prompts.write_text(json.dumps(tuning_prompts(options.per_module)), encoding="utf-8")
    for temperature in options.temperature:
        words = ["record", "--prompts", str(prompts), "--ignore-eos"]
        words += ["--out", str(options.out / f"temperature_{temperature:g}.jsonl")]
        words += ["--temperature", str(temperature), "--seed", str(options.seed)]
        words += ["--max-tokens", str(options.max_tokens), "--threads", str(options.threads)]
        record.run(build_parser().parse_args(words))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--out", type=Path, required=True, metavar="FOLDER", help="of the recordings")
    option("--per-module", type=int, default=12, metavar="N", help="prompts from each module (%(default)s)")
    option("--temperature", type=float, nargs="+", default=[0.0, 0.4, 0.8, 1.2], metavar="T")
    option("--max-tokens", type=int, default=128, metavar="N", help="of each text (%(default)s)")
    option("--seed", type=int, default=11)
    option("--threads", type=int, default=1, metavar="N", help="of the draft model (%(default)s)")
    try:
        make_recordings(parser.parse_args())
    except ForerunError as error:
        print(f"benchmarks.calibration: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
