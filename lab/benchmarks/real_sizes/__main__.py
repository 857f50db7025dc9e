"""Measure Forerun at realistic sizes, with a real pair.

    python -m lab.benchmarks.real_sizes --target T.gguf --draft D.gguf --prompts FOLDER \\
        --texts 2 --target-steps 30 --row 20 --slowdown 7 --lookups off on

Every published policy beside `adaptive`, at three distances:

    python -m lab.benchmarks.real_sizes --target T.gguf --draft D.gguf --prompts FOLDER --kinds chat code \\
        --texts 2 --rtts 0 60 150 --target-steps 30 --slowdown 7 --policies published

Only the target's texts are kept, in a folder. An oracle serves them, so that a step takes the time that is
asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path

from common.errors import UserError
from common.offers import offered
from edge_client.core.policies import GROUP, make_policy
from forerun.terminal import ProgressBar
from lab.bench.report import Machine, carry_out, plain_parser_of
from lab.benchmarks.real_sizes.end_to_end import Cell, EndToEndReport, EndToEndSettings, lines_of, measure
from lab.benchmarks.real_sizes.kinds import KINDS, published_prompts
from lab.benchmarks.real_sizes.pair import Pair
from lab.benchmarks.real_sizes.predicted import DraftRecord
from lab.benchmarks.real_sizes.texts import open_model, texts_of

POLICIES = ("off", "chain", "sync:2", "sync:4", "sync:8", "tree", "adaptive")
PUBLISHED = "published"  # these, and every policy that a package offers


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser_of("real_sizes", __doc__)
    option = parser.add_argument
    option("--target", type=Path, required=True, metavar="FILE", help="a target, GGUF")
    option("--draft", type=Path, required=True, metavar="FILE", help="its draft, GGUF")
    option(
        "--other-tokens", action="store_true", help="draft by a translation: the tokens are not the target's"
    )
    option("--prompts", type=Path, required=True, metavar="FOLDER", help="published files of prompts")
    option("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="(%(default)s)")
    option("--folder", type=Path, metavar="PATH", help="folder for texts (build/real_sizes/TARGET)")
    option("--texts", type=int, default=10, metavar="N", help="prompts of each kind (%(default)s)")
    option("--tokens", type=int, default=120, metavar="N", help="tokens of each text (%(default)s)")
    option("--target-steps", type=float, nargs="+", default=[30, 60, 100], metavar="MS")
    option("--prompt-row", type=float, default=0.1, metavar="MS", help="time per prompt row (%(default)s)")
    option("--row", type=float, default=0.0, metavar="MS", help="time per further row (%(default)s)")
    option(
        "--slowdown", type=float, default=1.0, metavar="N", help="slow link and target (%(default)s times)"
    )
    option("--temperatures", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        metavar="NAME",
        help="names, or published for all (%(default)s)",
    )
    option("--rtts", type=float, nargs="+", default=[60.0], metavar="MS", help="(%(default)s)")
    option("--lookups", nargs="+", choices=("off", "on"), default=["off"], help="repeated text (%(default)s)")
    option("--out", type=Path, metavar="FILE", help="JSON report; its finished cells are not run again")
    parser.set_defaults(run=_end_to_end)
    return parser


def _end_to_end(options: argparse.Namespace) -> None:
    if options.policies == [PUBLISHED]:
        options.policies = [*POLICIES[:-1], *sorted(set(offered(GROUP)) - {*POLICIES}), POLICIES[-1]]
    for policy in options.policies:
        make_policy(policy)
    if not 0.0 < options.slowdown < 1000.0:
        raise UserError(f"--slowdown is {options.slowdown:g}; it must lie in (0, 1000)")
    if options.tokens < 2:
        raise UserError(f"--tokens is {options.tokens}; a pace needs at least 2")
    folder = options.folder or Path("build/real_sizes") / options.target.stem
    pair = Pair(options.target, options.draft, folder, options.other_tokens)
    settings = EndToEndSettings(
        options.prompt_row,
        options.row,
        options.slowdown,
        tuple(options.policies),
        options.texts,
        options.tokens,
    )
    common = {**asdict(settings), "policies": list(settings.policies)}
    common |= {"kinds": options.kinds, "target": options.target.stem}
    report = EndToEndReport.resumed(options.out, common, Machine().told())
    with open_model(pair.target) as model:
        prompts = published_prompts(model, options.prompts, options.texts, options.kinds)
    texts = {each: texts_of(pair, prompts, each, options.tokens) for each in options.temperatures}
    times, lookups = (options.rtts, options.target_steps), [each == "on" for each in options.lookups]
    cells = [Cell(*each) for each in product(*times, options.temperatures, [pair.draft.stem], lookups)]
    records = dict[float, DraftRecord]()
    with ProgressBar(sys.stderr) as bar:
        for number, cell in enumerate(cells):
            if cell not in report.rows:
                show, own = partial(bar.show, number, len(cells)), texts[cell.temperature]
                if cell.temperature not in records:
                    show(f"{cell}: the draft reads the texts")
                    records[cell.temperature] = DraftRecord.of(pair, own)
                how = measure(pair, cell, settings, prompts, own, records[cell.temperature], show)
                report.rows[cell] = asyncio.run(how)
                if options.out is not None:
                    report.write(options.out)
            print(*lines_of(report.rows[cell]), sep="\n", end="\n\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("real_sizes", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
