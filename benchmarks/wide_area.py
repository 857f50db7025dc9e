"""Forerun beside what else there is, on real models over links of several lengths.

    python -m benchmarks.wide_area measure --out wide_area.json
    python -m benchmarks.wide_area table wide_area.json
    python -m benchmarks.wide_area plot wide_area.json --out wide_area.png

Every setting is a step floor, a temperature and a round trip. In each the schemes run on the same prompts,
interleaved prompt by prompt: server streaming, the best synchronous block, `chain`, `tree`, Forerun, and the
device alone, whose text is the draft's. Co-located speculation (the draft beside the target, on a processor
like the device's) is the best synchronous block over a link of RTT 0. One rig (verifier, link, edge) serves
all settings of a floor; the link's round trip is changed between them. After each setting one more text is
written while the link is cut in its middle.

The file is written after every setting. The same command again goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import demo_models
from benchmarks.reports import Row, carry_out
from benchmarks.wide_area_plot import plot
from benchmarks.wide_area_report import (
    COLOCATED,
    DEVICE_ONLY,
    FIGURES,
    TITLES,
    Report,
    Setting,
    row_of,
    table,
)
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun.edge import DEVICE
from forerun.progress import ProgressBar
from forerun.prompts import add_prompts, prompts_from
from forerun.rig import Rig, RigSettings, check_models
from forerun.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST, Progress, Search, measure

BLOCKS = (2, 4, 6, 8, 12, 16, 24)
"""Lengths searched for the best synchronous block: on every fifth prompt, and the best two on all."""

EVERY, FINALISTS, PATIENCE = 5, 2, 2
AHEAD = ("chain", "tree", FORERUN)
POLICIES = {SERVER_STREAMING: "off", "chain": "chain", "tree": "tree", DEVICE_ONLY: DEVICE}
"""Of the schemes that need neither a search nor an option."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wide_area",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_measure(actions.add_parser("measure", help="run everything; takes an hour or more"))
    shown = actions.add_parser("table", help="a report for people")
    shown.add_argument("report", type=Path, metavar="FILE")
    shown.add_argument(
        "--figure", choices=FIGURES, default="ms_per_token", metavar="NAME", help="(%(default)s)"
    )
    shown.set_defaults(run=_table)
    drawn = actions.add_parser("plot", help="speed-up over server streaming against the round trip")
    drawn.add_argument("report", type=Path, metavar="FILE")
    drawn.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf")
    drawn.set_defaults(run=_plot)
    return parser


def _add_measure(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--out", type=Path, required=True, metavar="FILE", help="the report; what is in it is not run again"
    )
    option("--rtt", type=float, nargs="+", default=[0, 20, 60, 100, 200], metavar="MS")
    option(
        "--floor",
        type=float,
        nargs="+",
        default=[10, 30, 60],
        metavar="MS",
        help="least time of a target step",
    )
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option(
        "--schemes",
        nargs="+",
        choices=tuple(TITLES),
        default=list(TITLES),
        metavar="NAME",
        help="all unless told: %(choices)s",
    )
    add_prompts(parser, 8)
    option("--first-prompt", type=int, default=0, metavar="I", help="leave out the I before it (%(default)s)")
    option(
        "--blocks", type=int, nargs="+", default=list(BLOCKS), metavar="K", help="lengths searched for sync"
    )
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--policy", default="adaptive", help="growth policy of the forerun scheme (%(default)s)")
    option("--seed", type=int, default=1)
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH")
    parser.set_defaults(run=_measure)


# measure ----------------------------------------------------------------------------------------------------


def _measure(options: argparse.Namespace) -> None:
    prompts = prompts_from(options, options.first_prompt)
    check(options)
    report = Report.resumed(options.out, common_settings(options, prompts), _machine())
    asyncio.run(measure_all(options, prompts, report))
    print(table(report))


def check(options: argparse.Namespace) -> None:
    """Before an hour is spent. Raises `UserError`, `UnavailableError`."""
    check_models(Path(options.target), Path(options.draft))
    make_policy(options.policy)
    for name in ("rtt", "floor", "temperature"):
        if not all(0 <= value < float("inf") for value in getattr(options, name)):
            raise UserError(f"--{name} is {getattr(options, name)}; every value must be 0 or more")
    if min(options.blocks) < 1 or options.max_tokens < 2:
        raise UserError("--blocks must be 1 or more, and --max-tokens 2: a pace needs two tokens")


def common_settings(options: argparse.Namespace, prompts: Sequence[str]) -> dict[str, Any]:
    """What all rows of a report have in common: whoever goes on with it must ask for the same."""
    return {
        "schemes": schemes_of(options),
        "prompts": options.prompts.name if options.prompts else "bundled",
        "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16],
        "first_prompt": options.first_prompt,
        "num_prompts": options.num_prompts,
        "blocks": sorted(set(options.blocks)),
        "max_tokens": options.max_tokens,
        "policy": options.policy,
        "seed": options.seed,
        "target": Path(options.target).name,
        "draft": Path(options.draft).name,
    }


def schemes_of(options: argparse.Namespace) -> list[str]:
    """In the order of the tables; server streaming is what the others are held against."""
    return [name for name in TITLES if name in {SERVER_STREAMING, *options.schemes}]


def settings_of(options: argparse.Namespace) -> list[Setting]:
    """All rows, floor by floor; RTT 0 comes first, and is added if a co-located draft is asked for."""
    rtts = [*options.rtt, *([0.0] if COLOCATED in options.schemes else [])]
    return [
        Setting(floor, temperature, rtt)
        for floor in dict.fromkeys(map(float, options.floor))
        for temperature in dict.fromkeys(map(float, options.temperature))
        for rtt in sorted(set(map(float, rtts)))
    ]


def cost(options: argparse.Namespace, setting: Setting) -> float:
    """About how long a setting takes, in no unit: the time left is told by it, nothing else."""
    num_blocks = len(set(options.blocks))
    block = (setting.rtt_ms + setting.floor_ms) / 4
    ahead = min(setting.floor_ms, 0.4 * setting.floor_ms + 0.08 * setting.rtt_ms)
    found = 1.0 + setting.floor_ms + ahead * sum(name in AHEAD for name in options.schemes)
    if has_search(options, setting):
        found += block * (FINALISTS + num_blocks / EVERY)
    return found


def has_search(options: argparse.Namespace, setting: Setting) -> bool:
    """The best synchronous block over no distance is the co-located draft."""
    return SYNC_BEST in options.schemes or (COLOCATED in options.schemes and setting.rtt_ms == 0)


async def measure_all(options: argparse.Namespace, prompts: Sequence[str], report: Report) -> None:
    """Run the settings that the report lacks, and write it after each."""
    missing = [setting for setting in settings_of(options) if setting not in report.rows]
    costs = {setting: cost(options, setting) for setting in missing}
    done, total = 0.0, sum(costs.values())
    with ProgressBar(sys.stderr) as bar:
        for floor_ms, settings in itertools.groupby(missing, lambda setting: setting.floor_ms):
            async with Rig(RigSettings(options.target, options.draft, step_floor_ms=floor_ms)) as rig:
                for setting in settings:
                    bar.note(f"{setting}; {bar.left(done, total)} left")
                    progress = partial(_show, bar, done, total, setting)
                    row = await measure_setting(rig, options, prompts, setting, progress)
                    report.add(setting, row, COLOCATED in options.schemes)
                    report.write(options.out)
                    done += costs[setting]


def _show(bar: ProgressBar, done: float, total: float, setting: Setting, text: str) -> None:
    bar.show(done, total, f"{setting}, {text}")


async def measure_setting(
    rig: Rig, options: argparse.Namespace, prompts: Sequence[str], setting: Setting, progress: Progress
) -> Row:
    """One row of the report."""
    params = SamplingParams(
        temperature=setting.temperature, max_tokens=options.max_tokens, seed=options.seed, ignore_eos=True
    )
    sampling = asdict(params)
    rig.link.rtt(setting.rtt_ms)
    known = {**POLICIES, FORERUN: options.policy}
    policies = {name: known[name] for name in schemes_of(options) if name in known}
    search = (
        Search(tuple(options.blocks), EVERY, FINALISTS, PATIENCE) if has_search(options, setting) else None
    )
    measured = await measure(rig, prompts, sampling, policies, search, progress)
    reference = measured.runs[SERVER_STREAMING][0]["tokens"]
    survives = await _text_after_a_cut(rig, prompts[0], options.policy, sampling) == reference
    return row_of(setting, measured, survives)


async def _text_after_a_cut(rig: Rig, prompt: str, policy: str, sampling: dict[str, Any]) -> list[int] | None:
    """A text whose link is reset in its middle; None if its session did not resume."""
    pieces, cut, event = 0, False, dict[str, Any]()
    async for event in rig.events(prompt, policy, sampling):
        pieces += event["event"] == "text"
        if pieces >= sampling["max_tokens"] // 2 and not cut:
            rig.link.cut()
            cut = True
    tokens: list[int] = event["tokens"]
    return tokens if event["stats"]["resumes"] >= 1 else None


def _machine() -> dict[str, Any]:
    """Where the first row was measured."""
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
        "processors": os.cpu_count(),
    }


# The command ------------------------------------------------------------------------------------------------


def _table(options: argparse.Namespace) -> None:
    print(table(Report.read(options.report), options.figure))


def _plot(options: argparse.Namespace) -> None:
    plot(Report.read(options.report), options.out)
    print(f"drawn: {options.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("wide_area", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
