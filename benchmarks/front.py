"""What speed costs in draft tokens: each policy at many settings, in the ten steady worlds; simulated.

    python -m benchmarks.front measure --seeds 6 > front.json
    python -m benchmarks.front plot front.json --out front.png
    python -m benchmarks.front meet adaptive:max_sent_per_token=4.4 tree:cut=0.02 --seeds 20

A point is a setting in a world: draft tokens sent per token of text, and ms per token. The settings of one
family are joined by a line. Horizontal are server streaming and the clairvoyant bound. `meet` holds two
policies against each other, seed by seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.adaptation import steady_worlds
from benchmarks.wins import Meeting, Run, run_of
from common.errors import UserError
from common.figures import rounded
from simulator.canvas import Sheet, drawing, handles, plain_numbers
from simulator.documents import read_text
from simulator.palette import Style
from simulator.pool import Pool
from simulator.schemes import CLAIRVOYANT, SERVER_STREAMING, check_scheme
from simulator.world import World

SENDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
BUDGETS = (2, 3, 4.4, 6, 10, 16)
CUTS = (0.002, 0.005, 0.02, 0.05, 0.1, 0.2)

FAMILIES: Mapping[str, Sequence[str]] = {
    "adaptive": [f"adaptive:send={send}" for send in SENDS],
    "adaptive, a traffic budget": [f"adaptive:max_sent_per_token={budget}" for budget in BUDGETS],
    "adaptive, 4 wide, 2 children": [
        f"adaptive:max_width=4,max_children=2,send={send}" for send in SENDS[::2]
    ],
    "tree, 8 wide, 4 children": [f"tree:width=8,max_children=4,cut={cut}" for cut in CUTS],
    "tree, 4 wide, 2 children": [f"tree:width=4,max_children=2,cut={cut}" for cut in CUTS[::2]],
    "chain": [f"chain:cut={cut}" for cut in (0.005, 0.02, 0.1, 0.3)],
    "sync": [f"sync:{block}" for block in (1, 2, 4, 8, 16)],
}
LEVELS = (SERVER_STREAMING, CLAIRVOYANT)
"""Schemes that are one line across a panel: what is sent says nothing about them."""

STYLES = {
    "adaptive": Style("#00c080", "*"),
    "adaptive, a traffic budget": Style("#0070c0", "X"),
    "adaptive, 4 wide, 2 children": Style("#00c080", "P", ":"),
    "tree, 8 wide, 4 children": Style("#eebb00", "o"),
    "tree, 4 wide, 2 children": Style("#eebb00", "D", ":"),
    "chain": Style("#440077", "v"),
    "sync": Style("#e06000", "s"),
    SERVER_STREAMING: Style("#808080", ""),
    CLAIRVOYANT: Style("#000000", "", "--"),
}


MS, SENT = "ms_per_token", "draft_tokens_per_token"


def measure(
    pool: Pool, worlds: Mapping[str, World], families: Mapping[str, Sequence[str]], seeds: int
) -> dict[str, Any]:
    """Of each world the points by family, and ms per token by level."""
    policies = [policy for family in families.values() for policy in family]
    tried = [*policies, *LEVELS]
    results = pool.map(
        (policy, replace(world, seed=world.seed + number))
        for world in worlds.values()
        for policy in tried
        for number in range(seeds)
    )
    found = dict[str, Any]()
    for name in worlds:
        points = {policy: _point([run_of(next(results)[0]) for _ in range(seeds)]) for policy in tried}
        found[name] = {
            "families": {
                family: [{"policy": policy, **points[policy]} for policy in settings]
                for family, settings in families.items()
            },
            "levels": {level: points[level][MS] for level in LEVELS},
        }
        print(f"… {name}", file=sys.stderr, flush=True)
    return {"seeds": seeds, "worlds": found}


def meet(pool: Pool, worlds: Mapping[str, World], policy: str, rival: str, seeds: int) -> dict[str, Any]:
    """Of each world ms per token and tokens sent of both, and the ratio of ms with its standard error."""
    results = pool.map(
        (tried, replace(world, seed=world.seed + number))
        for world in worlds.values()
        for tried in (policy, rival)
        for number in range(seeds)
    )
    found = dict[str, Any]()
    for name in worlds:
        ours, theirs = (tuple(run_of(next(results)[0]) for _ in range(seeds)) for _ in range(2))
        meeting = Meeting(name, rival, ours, theirs)
        found[name] = {
            "policy": _point(ours),
            "rival": _point(theirs),
            "ratio": round(meeting.ratio, 4),
            "standard_error": rounded(meeting.standard_error),
        }
        print(f"… {name}", file=sys.stderr, flush=True)
    return {"policy": policy, "rival": rival, "seeds": seeds, "worlds": found}


def _point(runs: Sequence[Run]) -> dict[str, float]:
    return {MS: round(fmean(run.ms for run in runs), 3), SENT: round(fmean(run.sent for run in runs), 3)}


@drawing
def plot_front(report: Mapping[str, Any], out: Path) -> None:
    """A panel for each world, the two of a round trip below each other. Raises `UserError` for a file that
    cannot be written."""
    worlds = report["worlds"]
    rows = [list(worlds)[::2], list(worlds)[1::2]]
    sheet = Sheet(out, len(rows), len(rows[0]), (3.0, 2.7), sharex=True)
    for names, line in zip(rows, sheet.panels, strict=True):
        for name, axes in zip(names, line, strict=False):
            _panel(axes, name, worlds[name])
        line[0].set_ylabel("ms per token")
    for axes in sheet.panels[-1]:
        axes.set_xlabel("draft tokens sent\nper token of text")
    sheet.legend(handles(STYLES))
    sheet.save()


def _panel(axes: Any, name: str, world: Mapping[str, Any]) -> None:
    axes.set_title(name)
    axes.set_xscale("log")
    for family, points in world["families"].items():
        style = STYLES[family]
        axes.plot(
            [point[SENT] for point in points], [point[MS] for point in points],
            color=style.colour, linestyle=style.line, marker=style.marker, markersize=4, linewidth=1.0,
        )  # fmt: skip
    for level, ms in world["levels"].items():
        axes.axhline(ms, color=STYLES[level].colour, linestyle=STYLES[level].line, linewidth=1.0)
    axes.set_ylim(0, 1.15 * world["levels"][SERVER_STREAMING])
    plain_numbers(axes.xaxis)
    axes.grid(alpha=0.3, linewidth=0.6)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front", description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    action = actions.add_parser("measure", help="print the points as one JSON object")
    _add_runs(action)
    action = actions.add_parser("meet", help="print how two policies compare in each world, as JSON")
    action.add_argument("policy", help="a growth policy with its settings")
    action.add_argument("rival", help="another")
    _add_runs(action)
    action = actions.add_parser("plot", help="draw what was measured")
    action.add_argument("report", type=Path, help="what `measure` printed")
    action.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg or .pdf")
    options = parser.parse_args(arguments)
    try:
        if options.action == "plot":
            plot_front(json.loads(read_text("the report", options.report)), options.out)
            return 0
        if options.seeds < 1:
            raise UserError(f"--seeds is {options.seeds}; it must be at least 1")
        with Pool(options.workers) as pool:
            print(json.dumps(_measured(pool, options), indent=1))
    except UserError as error:
        parser.error(str(error))
    return 0


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=6, metavar="N", help="of each world (%(default)s)")
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes; 0 = one per processor"
    )


def _measured(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    if options.action == "measure":
        return measure(pool, steady_worlds(), FAMILIES, options.seeds)
    for scheme in (options.policy, options.rival):
        check_scheme(scheme)
    return meet(pool, steady_worlds(), options.policy, options.rival, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
