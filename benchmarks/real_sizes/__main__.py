"""Measure Forerun at the sizes that users have, with a pair that is made on the spot.

    python -m benchmarks.real_sizes make                      # the pair, and how its drafts agree with it
    python -m benchmarks.real_sizes draft-step --json         # so verify-step, choices, long-prompts, memory
    python -m benchmarks.real_sizes end-to-end --target-steps 100 --temperatures 0 --drafts q8_0 \\
        --policies off chain adaptive --texts 3

The pair has Qwen2.5-0.5B's shape: 494 million random, seeded weights and a vocabulary of 151,936 rows. It is
kept in a folder (3.3 GB with its drafts). `--shape tiny` makes one of 1 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.real_sizes import tables
from benchmarks.real_sizes.end_to_end import Cell, Report, Settings, measure, table
from benchmarks.real_sizes.pair import FORMATS, SHAPES, Pair
from benchmarks.real_sizes.texts import LONG, agreement, certainty, open_model, short_prompts, texts_of
from benchmarks.reports import carry_out
from common.errors import UserError
from edge_client.core.policies import make_policy
from forerun.progress import ProgressBar

POLICIES = ("off", "chain", "sync:2", "sync:4", "sync:8", "tree", "adaptive")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_sizes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = actions.add_parser("make", help="make the pair, and say how its drafts agree with it")
    _add_pair(made, texts=3, tokens=64)
    made.set_defaults(run=_make)
    compared = actions.add_parser("end-to-end", help="growth policies beside each other")
    _add_pair(compared, texts=10, tokens=120)
    option = compared.add_argument
    option("--target-steps", type=float, nargs="+", default=[30, 60, 100], metavar="MS")
    option("--prompt-row", type=float, default=0.1, metavar="MS", help="more per prompt row (%(default)s)")
    option("--temperatures", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option("--drafts", nargs="+", choices=tuple(FORMATS), default=list(FORMATS), metavar="FORMAT")
    option("--policies", nargs="+", default=list(POLICIES), metavar="NAME", help="(%(default)s)")
    option("--rtt", type=float, default=60.0, metavar="MS", help="(%(default)s)")
    option("--recall", action="store_true", help="propose what a text repeats, on both sides")
    option("--out", type=Path, metavar="FILE", help="JSON report; what is in it is not run again")
    compared.set_defaults(run=_end_to_end)
    _add_tables(actions)
    return parser


def _add_tables(actions: Any) -> None:
    """Parts by themselves. Each action prints rows, or a JSON list of them."""
    for name, words, run in (
        ("draft-step", "llama_decode and our step over it, by rows and format", _draft_step),
        ("verify-step", "the packed step beside plain transformers, by rows and type", _verify_step),
        ("choices", "what choices take on the host, by sampling and sessions", _choices),
        ("long-prompts", "first token, pace and mode after long prompts; a text beside one", _long_prompts),
        ("outlook", "what doctor expects beside what texts show", _outlook),
        ("memory", "memory and start times of verifier and edge", _memory),
    ):
        parser = actions.add_parser(name, help=words)
        _add_pair(parser, texts=1, tokens=120)
        option = parser.add_argument
        option("--drafts", nargs="+", choices=tuple(FORMATS), default=list(FORMATS), metavar="FORMAT")
        option("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 8, 16], metavar="N", help="of a step")
        option(
            "--repeats", type=int, default=10, metavar="N", help="of which the median counts (%(default)s)"
        )
        option("--threads", type=int, default=2, metavar="N", help="of the target (%(default)s)")
        option("--target-step", type=float, default=60.0, metavar="MS", help="(%(default)s)")
        option("--sizes", type=int, nargs="+", default=list(LONG), metavar="N", help="tokens of long prompts")
        option("--json", action="store_true")
        parser.set_defaults(run=lambda options, run=run: _show(options, run(options, _pair(options))))


def _add_pair(parser: argparse.ArgumentParser, *, texts: int, tokens: int) -> None:
    option = parser.add_argument
    option("--shape", choices=tuple(SHAPES), default="0.5b", help="(%(default)s)")
    option("--folder", type=Path, metavar="PATH", help="of the pair (build/real_sizes/SHAPE)")
    option("--texts", type=int, default=texts, metavar="N", help="prompts, at most 16 (%(default)s)")
    option("--tokens", type=int, default=tokens, metavar="N", help="of each text (%(default)s)")


def _pair(options: argparse.Namespace) -> Pair:
    """Made unless it is there."""
    if options.tokens < 2:
        raise UserError(f"--tokens is {options.tokens}; a pace needs at least 2")
    pair = Pair(options.folder or Path("build/real_sizes") / options.shape)
    if not pair.is_made(SHAPES[options.shape]):
        from benchmarks.real_sizes.make import make  # torch takes seconds to import

        make(pair, SHAPES[options.shape])
    return pair


def _make(options: argparse.Namespace) -> None:
    pair = _pair(options)
    with open_model(str(pair.draft("bf16"))) as model:
        prompts = short_prompts(model, options.texts)
    texts = [texts_of(pair, prompts, temperature, options.tokens) for temperature in (0.0, 0.8)]
    with open_model(str(pair.draft("bf16"))) as model:
        told = certainty(model, texts[0])
    agreed = {}
    for kind in FORMATS:
        with open_model(str(pair.draft(kind))) as model:
            agreed[kind] = [round(agreement(model, each), 3) for each in texts]
    print(json.dumps({"folder": str(pair.folder), **told, "agreement_t0_t0.8": agreed}, indent=1))


def _end_to_end(options: argparse.Namespace) -> None:
    for policy in options.policies:
        make_policy(policy)
    pair = _pair(options)
    settings = Settings(
        options.rtt,
        options.prompt_row,
        tuple(options.policies),
        options.texts,
        options.tokens,
        options.recall,
    )
    common = {**asdict(settings), "policies": list(settings.policies), "shape": options.shape}
    machine = {"machine": platform.machine(), "processors": os.cpu_count()}
    report = Report.resumed(options.out, common, machine)
    with open_model(str(pair.draft("bf16"))) as model:
        prompts = short_prompts(model, options.texts)
    texts = {each: texts_of(pair, prompts, each, options.tokens) for each in options.temperatures}
    cells = [
        Cell(*each)
        for each in product(map(float, options.target_steps), options.temperatures, options.drafts)
    ]
    words = [prompt.text for prompt in prompts]
    with ProgressBar(sys.stderr) as bar:
        for number, cell in enumerate(cells):
            if cell not in report.rows:

                def show(line: str, done: int = number) -> None:
                    bar.show(done, len(cells), line)

                report.rows[cell] = asyncio.run(
                    measure(pair, cell, settings, words, texts[cell.temperature], show)
                )
                if options.out is not None:
                    report.write(options.out)
            print(table(report.rows[cell]), end="\n\n", flush=True)


def _draft_step(options: argparse.Namespace, pair: Pair) -> tables.Rows:
    return tables.draft_step(pair, options.drafts, options.rows, options.repeats)


def _verify_step(options: argparse.Namespace, pair: Pair) -> tables.Rows:
    return tables.verify_step(pair, options.rows, options.repeats, options.threads)


def _choices(options: argparse.Namespace, pair: Pair) -> tables.Rows:
    return tables.choices(pair, tables.SESSIONS, options.repeats)


def _long_prompts(options: argparse.Namespace, pair: Pair) -> tables.Rows:
    steps, sizes = options.target_step, options.sizes
    return [
        {"draft": draft, **row}
        for draft in options.drafts
        for row in asyncio.run(tables.long_prompts(pair, draft, steps, _plain(options), sizes))
    ]


def _outlook(options: argparse.Namespace, pair: Pair) -> tables.Rows:
    settings = replace(_plain(options), num_texts=options.texts)
    return [
        {"draft": draft, **row}
        for draft in options.drafts
        for row in asyncio.run(tables.outlook(pair, draft, options.target_step, settings))
    ]


def _memory(options: argparse.Namespace, pair: Pair) -> tables.Rows:
    return asyncio.run(tables.memory(pair, options.drafts, _plain(options), options.threads))


def _plain(options: argparse.Namespace) -> Settings:
    """RTT 60, 0.1 ms per prompt row, no recall."""
    return Settings(60.0, 0.1, (), 1, options.tokens, False)


def _show(options: argparse.Namespace, rows: tables.Rows) -> None:
    print(json.dumps(rows, indent=1) if options.json else tables.shown(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("real_sizes", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
