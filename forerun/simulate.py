"""`forerun simulate`: worlds in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from forerun import advise_command, plot_command, validate_command
from forerun.options import add_workers
from forerun.paint import Painter
from forerun.progress import ProgressBar
from simulator.documents import write_error, write_whole
from simulator.experiment import (
    Outcome,
    as_dict,
    distance_to_bound,
    mean_speedup,
    percentiles,
    run_experiment,
)
from simulator.files import Experiment, read_experiment
from simulator.link import LinkSpec
from simulator.measures import KINDS
from simulator.schemes import check_scheme, is_bounded, policy_maker
from simulator.sweep import (
    AXES,
    LATENCIES,
    MANIFEST,
    RESULTS,
    Standing,
    Sweep,
    grids,
    parquet_path,
    run_sweep,
    shown,
)
from simulator.timeline import as_lines, as_trace_events, timeline

DESCRIPTION = """\
Runs the very state machines of edge and verifier in virtual time: no model, no network, no GPU. A world is a
small TOML or JSON file; every scheme meets the same text, the same draft and the same link, seed by seed."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="compare schemes in a world of your making, in virtual time",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    others = (each.add_parser for each in (advise_command, plot_command, validate_command))
    for add in (_add_run, _add_sweep, _add_replay, *others):
        add(actions)


def _add_run(actions: Any) -> None:
    parser = actions.add_parser(
        "run", help="one world, all its schemes, a table", description="Run one world and print a table."
    )
    parser.add_argument(
        "world", type=Path, help="a .toml or .json file; docs/simulation.md tells what it holds"
    )
    _add_experiment(parser)
    parser.add_argument("--rtt", type=float, metavar="MS", help="instead of the world's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _add_sweep(actions: Any) -> None:
    parser = actions.add_parser(
        "sweep",
        help="a grid of worlds, into a folder",
        description="Run a world at every point of a grid. Finished points are kept, so the same command "
        "goes on where an interrupted one stopped.",
    )
    option = parser.add_argument
    option("world", type=Path, help="the world that the grid starts from")
    option("--axis", action="append", required=True, metavar="NAME=V,V,...", help=f"one of {', '.join(AXES)}")
    _add_experiment(parser)
    option(
        "--out", type=Path, required=True, metavar="FOLDER", help=f"gets {RESULTS}, {LATENCIES}, {MANIFEST}"
    )
    parser.set_defaults(run=_sweep, rtt=None)


def _add_replay(actions: Any) -> None:
    parser = actions.add_parser(
        "replay",
        help="one session as a timeline",
        description="Show what the device drafted, what travelled, what was evaluated and what came out.",
    )
    option = parser.add_argument
    option("world", type=Path, help="its first seed and one client are taken")
    option("--scheme", default="forerun", metavar="NAME", help="a scheme or growth policy (%(default)s)")
    option("--tokens", type=int, default=40, metavar="N", help="of the text (%(default)s)")
    option("--rtt", type=float, metavar="MS", help="instead of the world's")
    option(
        "--trace", type=Path, metavar="FILE", help="write a trace for Perfetto or chrome://tracing instead"
    )
    parser.set_defaults(run=_replay, repeats=None)


def _add_experiment(parser: Any) -> None:
    """What `run` and `sweep` may say in place of the world."""
    option = parser.add_argument
    option("--scheme", action="append", metavar="NAME", help="instead of the world's; several may be given")
    option("--repeats", type=int, metavar="N", help="seeds, instead of the world's")
    add_workers(parser)


def _run(options: argparse.Namespace) -> int:
    experiment = _experiment(options)

    with ProgressBar(sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.show(done, total, f"{done} of {total} runs")
            if done % max(1, total // 20) == 0 or done == total:
                bar.note(f"{done} of {total} runs")

        outcomes = run_experiment(experiment, options.workers, progress)
    if options.json:
        print(json.dumps(_as_json(options, experiment, outcomes), indent=2))
    else:
        print_table(experiment, outcomes)
    return 0


def _sweep(options: argparse.Namespace) -> int:
    sweep = Sweep(_experiment(options), grids(options.axis))

    with ProgressBar(sys.stderr) as bar:

        def progress(standing: Standing) -> None:
            points = f"{standing.cells_done} of {standing.cells}"
            bar.show(standing.runs_done, standing.runs, f"{points} points")
            if standing.cell is not None:
                bar.note(f"{points}: {', '.join(f'{axis} {shown(v)}' for axis, v in standing.cell.items())}")

        table = run_sweep(sweep, options.out, options.workers, progress)
    print(f"all {len(sweep.cells())} points of the grid are in {table}")
    if not parquet_path(table).exists():
        print("there are no Parquet files, which need pyarrow; pip install 'forerun[simulation]' brings it")
    return 0


def _replay(options: argparse.Namespace) -> int:
    scheme, options.scheme = options.scheme, None
    world = replace(_experiment(options).world, tokens=options.tokens)
    check_scheme(scheme)
    if not is_bounded(scheme):
        raise UserError(f"replay shows drafts on a device with a verifier; {scheme} is none of them")
    spans = timeline(world, policy_maker(scheme))
    if options.trace is None:
        print("\n".join(as_lines(spans)))
        return 0
    try:
        write_whole(options.trace, json.dumps(as_trace_events(spans)))
    except OSError as error:
        raise write_error(f"the trace cannot be written to {options.trace}", error) from error
    print(f"written: {options.trace}; open it at https://ui.perfetto.dev")
    return 0


def _experiment(options: argparse.Namespace) -> Experiment:
    """The world's, with what the command line says instead."""
    experiment = read_experiment(options.world)
    if options.rtt is not None:
        if experiment.world.link.trace is not None:
            raise UserError("--rtt changes nothing where the link replays a trace")
        link = replace(experiment.world.link, rtt=options.rtt / 1000.0)
        experiment = replace(experiment, world=replace(experiment.world, link=link))
    if options.repeats is not None:
        experiment = replace(experiment, repeats=options.repeats)
    if options.scheme:
        experiment = replace(experiment, schemes=tuple(options.scheme))
    return experiment


def print_table(experiment: Experiment, outcomes: Sequence[Outcome]) -> None:
    """For people."""
    painter = Painter(sys.stdout)
    world = experiment.world
    names = [_shown(outcome) for outcome in outcomes]
    width = max(26, *(len(name) + 1 for name in names))
    print(
        painter.bold(
            f"{_network(world.link)}, target step {world.verifier.step_time * 1e3:g} ms, draft step "
            f"{world.device.draft_step_time(1) * 1e3:g} ms, acceptance {world.draft.mean:g}, "
            f"{world.num_sessions} session(s), {experiment.repeats} seeds"
        )
    )
    print(
        f"{'scheme':{width}}{'ms/token':>16}{'p95':>8}{'ttft ms':>9}{'x streaming':>13}{'x bound':>9}"
        f"{'steps':>8}{'rows':>7}{'drafted':>9}{'up B':>7}{'down B':>8}"
    )
    for name, outcome in zip(names, outcomes, strict=True):
        found = outcome.figures
        speedup = mean_speedup(outcomes, outcome.scheme)
        distance = distance_to_bound(outcomes, outcome.scheme)
        print(
            f"{name:{width}}{found.ms_per_token:>9.2f} ± {outcome.standard_error:<4.2f}"
            f"{found.ms_per_token_p95:>8.1f}{found.ttft_ms:>9.0f}"
            f"{_or_dash(speedup):>13}{_or_dash(distance):>9}"
            f"{found.target_steps_per_token:>8.2f}{found.evaluated_nodes_per_token:>7.1f}"
            f"{found.draft_tokens_per_token:>9.1f}{found.bytes_up_per_token:>7.0f}"
            f"{found.bytes_down_per_token:>8.0f}"
        )
    print("± is the standard error over seeds; steps, rows, drafted and bytes are per committed token")
    if not all(outcome.figures.identical for outcome in outcomes):
        print("* writes another text than the target")


def _network(link: LinkSpec) -> str:
    return f"RTT {link.rtt * 1e3:g} ms" if link.trace is None else f"trace {link.trace.name}"


def _shown(outcome: Outcome) -> str:
    name = outcome.scheme if outcome.scheme == outcome.policy else f"{outcome.scheme} ({outcome.policy})"
    return name if outcome.figures.identical else f"{name} *"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _as_json(
    options: argparse.Namespace, experiment: Experiment, outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    world = experiment.world
    settings = {
        "world": str(options.world),
        "rtt_ms": None if world.link.trace is not None else round(world.link.rtt * 1e3, 6),
        "seed": world.seed,
        "repeats": experiment.repeats,
        "tokens": world.tokens,
        "sessions": world.num_sessions,
    }
    schemes = {
        outcome.scheme: {
            **as_dict(outcome),
            "latencies_ms": {kind: percentiles(outcome, kind) for kind in KINDS},
        }
        for outcome in outcomes
    }
    return {"settings": settings, "schemes": schemes}
