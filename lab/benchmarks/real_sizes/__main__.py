"""Measure Forerun at realistic sizes, with a pair that is made on the spot, or with a real one.

    python -m lab.benchmarks.real_sizes make                      # the pair, and how its drafts agree with it
    python -m lab.benchmarks.draft_step --draft build/real_sizes/0.5b/draft-q8_0.gguf --threads 1
    python -m lab.benchmarks.verify_step --target build/real_sizes/0.5b/target --dtype bfloat16 --threads 2
    python -m lab.benchmarks.real_sizes end-to-end --target-steps 100 --temperatures 0 --drafts q8_0 \\
        --policies off chain adaptive --texts 3
    python -m lab.benchmarks.real_sizes end-to-end --target T.gguf --draft D.gguf --prompts FOLDER \\
        --texts 2 --target-steps 30 --row 20 --slowdown 7 --lookups off on

The made pair has Qwen2.5-0.5B's shape: 494 million random, seeded weights and a vocabulary of 151,936 rows.
It is kept in a folder (3.3 GB with its drafts). `--shape tiny` makes one of 1 MB. Of a real pair only the
target's texts are kept there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path

from common.errors import UserError
from edge_client.core.policies import make_policy
from forerun.terminal import ProgressBar
from lab.bench.report import Machine
from lab.benchmarks.real_sizes.end_to_end import Cell, EndToEndReport, EndToEndSettings, lines_of, measure
from lab.benchmarks.real_sizes.kinds import KINDS, published_prompts
from lab.benchmarks.real_sizes.pair import FORMATS, SHAPES, Pair
from lab.benchmarks.real_sizes.predicted import DraftRecord
from lab.benchmarks.real_sizes.texts import agreement, certainty, open_model, short_prompts, texts_of
from lab.benchmarks.reports import carry_out, plain_parser_of

POLICIES = ("off", "chain", "sync:2", "sync:4", "sync:8", "tree", "adaptive")


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser_of("real_sizes", __doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = actions.add_parser("make", help="make the pair, and report how its drafts agree with it")
    _add_pair(made, texts=3, tokens=64)
    made.set_defaults(run=_make)
    compared = actions.add_parser("end-to-end", help="compare growth policies")
    _add_pair(compared, texts=10, tokens=120)
    option = compared.add_argument
    option("--target", type=Path, metavar="FILE", help="a real target, GGUF; with --draft and --prompts")
    option("--draft", type=Path, metavar="FILE", help="its draft, GGUF, in place of --drafts")
    option("--prompts", type=Path, metavar="FOLDER", help="published files of prompts; --texts are of a kind")
    option("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="(%(default)s)")
    option("--target-steps", type=float, nargs="+", default=[30, 60, 100], metavar="MS")
    option("--prompt-row", type=float, default=0.1, metavar="MS", help="time per prompt row (%(default)s)")
    option("--row", type=float, default=0.0, metavar="MS", help="time per further row (%(default)s)")
    option(
        "--slowdown", type=float, default=1.0, metavar="N", help="slow link and target (%(default)s times)"
    )
    option("--temperatures", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option("--drafts", nargs="+", choices=tuple(FORMATS), default=list(FORMATS), help="(%(default)s)")
    option("--policies", nargs="+", default=list(POLICIES), metavar="NAME", help="(%(default)s)")
    option("--rtt", type=float, default=60.0, metavar="MS", help="(%(default)s)")
    option("--lookups", nargs="+", choices=("off", "on"), default=["off"], help="repeated text (%(default)s)")
    option("--out", type=Path, metavar="FILE", help="JSON report; its finished cells are not run again")
    compared.set_defaults(run=_end_to_end)
    return parser


def _add_pair(parser: argparse.ArgumentParser, *, texts: int, tokens: int) -> None:
    option = parser.add_argument
    option("--shape", choices=tuple(SHAPES), default="0.5b", help="(%(default)s)")
    option("--folder", type=Path, metavar="PATH", help="folder of the pair (build/real_sizes/SHAPE)")
    option("--texts", type=int, default=texts, metavar="N", help="prompts, at most 16 (%(default)s)")
    option("--tokens", type=int, default=tokens, metavar="N", help="tokens of each text (%(default)s)")


def _pair(options: argparse.Namespace) -> Pair:
    """Made unless it is there."""
    if options.tokens < 2:
        raise UserError(f"--tokens is {options.tokens}; a pace needs at least 2")
    pair = Pair(options.folder or Path("build/real_sizes") / options.shape)
    if not pair.is_made(SHAPES[options.shape]):
        from lab.benchmarks.real_sizes.make import make  # torch takes seconds to import

        make(pair, SHAPES[options.shape])
    return pair


def _make(options: argparse.Namespace) -> None:
    pair = _pair(options)
    with open_model(pair.writer) as model:
        prompts = short_prompts(model, options.texts)
    texts = [texts_of(pair, prompts, temperature, options.tokens) for temperature in (0.0, 0.8)]
    with open_model(pair.writer) as model:
        told = certainty(model, texts[0])
    agreed = {}
    for kind in FORMATS:
        with open_model(pair.draft(kind)) as model:
            agreed[kind] = [round(agreement(model, each), 3) for each in texts]
    print(json.dumps({"folder": str(pair.folder), **told, "agreement_t0_t0.8": agreed}, indent=1))


def _given(options: argparse.Namespace) -> Pair | None:
    """Return the real pair, if one is given. Raises `UserError` for an incomplete one."""
    given = {name: getattr(options, name) for name in ("target", "draft", "prompts")}
    if not any(given.values()):
        return None
    missing = [f"--{name}" for name, path in given.items() if path is None]
    if missing:
        raise UserError(f"a real pair needs {' and '.join(missing)}, too")
    if options.tokens < 2:
        raise UserError(f"--tokens is {options.tokens}; a pace needs at least 2")
    options.drafts = [options.draft.stem]
    folder = options.folder or Path("build/real_sizes") / options.target.stem
    return Pair(folder, (options.target, options.draft))


def _end_to_end(options: argparse.Namespace) -> None:
    for policy in options.policies:
        make_policy(policy)
    if not 0.0 < options.slowdown < 1000.0:
        raise UserError(f"--slowdown is {options.slowdown:g}; it must lie in (0, 1000)")
    given = _given(options)
    pair = given or _pair(options)
    settings = EndToEndSettings(
        options.rtt,
        options.prompt_row,
        options.row,
        options.slowdown,
        tuple(options.policies),
        options.texts,
        options.tokens,
    )
    models = {"kinds": options.kinds, "target": options.target.stem} if given else {"shape": options.shape}
    common = {**asdict(settings), "policies": list(settings.policies), **models}
    report = EndToEndReport.resumed(options.out, common, Machine().told())
    with open_model(pair.writer) as model:
        if given:
            prompts = published_prompts(model, options.prompts, options.texts, options.kinds)
        else:
            prompts = short_prompts(model, options.texts)
    texts = {each: texts_of(pair, prompts, each, options.tokens) for each in options.temperatures}
    steps, lookups = map(float, options.target_steps), [each == "on" for each in options.lookups]
    cells = [Cell(*each) for each in product(steps, options.temperatures, options.drafts, lookups)]
    records = dict[tuple[str, float], DraftRecord]()
    with ProgressBar(sys.stderr) as bar:
        for number, cell in enumerate(cells):
            if cell not in report.rows:
                show, own = partial(bar.show, number, len(cells)), texts[cell.temperature]
                key = cell.draft, cell.temperature
                if key not in records:
                    show(f"{cell}: the draft reads the texts")
                    records[key] = DraftRecord.of(pair.draft(cell.draft), own)
                how = measure(pair, cell, settings, prompts, own, records[key], show)
                report.rows[cell] = asyncio.run(how)
                if options.out is not None:
                    report.write(options.out)
            print(*lines_of(report.rows[cell]), sep="\n", end="\n\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("real_sizes", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
