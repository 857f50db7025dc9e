"""Implements `forerun simulate`: runs worlds in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from forerun.commands.daemon_table import duration
from forerun.options import JsonOption, WorkersOption, write_out
from forerun.terminal import Painter, ProgressBar, note, table
from schemes.claims import command as published
from simulator.advice import advice_json, advise, in_words
from simulator.drafts import BetaDraft, Draft, recorded_draft
from simulator.experiment import SchemeOutcome, run_experiment
from simulator.files import Experiment, read_experiment
from simulator.link_spec import LinkSpec
from simulator.plots import plot_capacity, plot_pace, plot_speedup
from simulator.proxy.cli import main as link
from simulator.recordings import read_recording
from simulator.report import TITLES, heading, report_json, table_rows
from simulator.schemes import (
    FORERUN,
    check_scheme,
    is_bounded,
    policy_maker,
)
from simulator.sweep import (
    AXES,
    LATENCIES,
    MANIFEST,
    RESULTS,
    Sweep,
    SweepProgress,
    caption_of,
    grids,
    read_results,
    rows_at,
    run_sweep,
    shown,
)
from simulator.tables import Row
from simulator.timeline import as_lines, as_trace_events, timeline
from simulator.world import DeviceSpec, VerifierSpec, World

DESCRIPTION = """\
Run the state machines of edge and verifier in virtual time, without models, network or GPU. A small TOML or
JSON file describes a world. For each seed, every scheme gets the same text, draft and link."""


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """Declares the world."""

    world: Path = setting(
        REQUIRED, "file of the world, .toml or .json (docs/simulation.md)", is_argument=True
    )

    @property
    def experiment(self) -> Experiment:
        """Return the world's experiment with the options' overrides. Raise `UserError`."""
        experiment = read_experiment(self.world)
        if (rtt := getattr(self, "rtt", None)) is not None:
            if experiment.world.sites or experiment.world.link.trace is not None:
                raise UserError("--rtt changes nothing with [[verifiers]] or a trace; omit it")
            link = replace(experiment.world.link, rtt=rtt / 1000.0)
            experiment = replace(experiment, world=replace(experiment.world, link=link))
        return experiment


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(WorldOptions, WorkersOption):
    """Declares what `run` and `sweep` may override."""

    scheme: tuple[str, ...] | None = setting(None, "scheme, instead of the world's; may be repeated", "NAME")
    repeats: int | None = setting(None, "number of seeds, instead of the world's", "N")

    @property
    def experiment(self) -> Experiment:
        experiment = super().experiment
        repeats = experiment.repeats if self.repeats is None else self.repeats
        return replace(experiment, repeats=repeats, schemes=self.scheme or experiment.schemes)


@dataclass(frozen=True, kw_only=True)
class RunOptions(ExperimentOptions):
    """Declares the options of one world's run."""

    rtt: float | None = setting(None, "round-trip time, instead of the world's", "MS")
    json: bool = setting(False, "print one JSON object")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ExperimentOptions):
    """Declares a grid of worlds."""

    axis: tuple[str, ...] = setting(
        REQUIRED, f"grid axis: {', '.join(AXES)}; may be repeated", "NAME=V,V,..."
    )
    out: Path = setting(REQUIRED, f"folder for {RESULTS}, {LATENCIES} and {MANIFEST}", "FOLDER")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(WorldOptions):
    """Declares the replay of one session: the world's first seed and one client."""

    scheme: str = setting("forerun", "scheme or growth policy", "NAME")
    tokens: int = setting(40, "number of tokens of the text", "N")
    rtt: float | None = setting(None, "round-trip time, instead of the world's", "MS")
    trace: Path | None = setting(None, "write a trace for Perfetto or chrome://tracing instead", "FILE")


def add_parser(commands: Any) -> None:
    words = "compare schemes in a simulated world, in virtual time"
    parser = add_command(commands, "simulate", words, description=DESCRIPTION)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_command(actions, "run", "run one world with all its schemes", _run, RunOptions)
    sweep = "Run a world at every point of a grid. Finished points are kept, so the same command resumes."
    add_command(actions, "sweep", "run a grid of worlds into a folder", _sweep, SweepOptions, sweep)
    replay = "Show drafted tokens, messages, evaluated nodes and committed text over time."
    add_command(actions, "replay", "show one session as a timeline", _replay, ReplayOptions, replay)
    advice = "Recommend a mode, and report the RTT at which drafting stops paying and what it costs."
    words = "report whether drafting pays for a network and two models"
    add_command(actions, "advise", words, _advise, AdviseOptions, advice)
    published.add_parser(actions)
    add_command(actions, "plot", "draw the results of a sweep", _plot, PlotOptions, PLOT)


def add_link(commands: Any) -> None:
    """Add `forerun link`, the fault proxy `simulator.proxy`."""
    parser = commands.add_parser(
        "link",
        help="emulate a distant or failing network between an edge and a verifier",
        description="Pass all arguments to the link; see `forerun link --help`.",
        add_help=False,
        prefix_chars="\0",  # every argument is the link's
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=lambda options: link(options.arguments, prog="forerun link"))


def _run(options: RunOptions) -> int:
    experiment, began = options.experiment, time.monotonic()
    with ProgressBar(sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.show(done, total, f"{done} of {total} runs")
            if done % max(1, total // 20) == 0 or done == total:
                left = (time.monotonic() - began) / done * (total - done)
                bar.note(f"{done} of {total} runs, {duration(left)} left")

        def early(outcomes: Sequence[SchemeOutcome]) -> None:
            bar.show_above(report_lines(replace(experiment, repeats=len(outcomes[0].paces)), outcomes))

        outcomes = run_experiment(experiment, options.workers, progress, None if options.json else early)
    if options.json:
        print(json.dumps(report_json(options.world, experiment, outcomes), indent=2))
    else:
        print_table(experiment, outcomes)
    return 0


def _sweep(options: SweepOptions) -> int:
    sweep = Sweep(options.experiment, grids(options.axis), options.world.name)
    table = _run_sweep(sweep, options.out, options.workers)
    print(f"all {len(sweep.cells())} points of the grid are in {table}")
    return 0


def _run_sweep(sweep: Sweep, out: Path, workers: int) -> Path:
    """Run what is missing of a sweep, and show its progress. Return the path of the results."""
    with ProgressBar(sys.stderr) as bar:

        def progress(standing: SweepProgress) -> None:
            points = f"{standing.cells_done} of {standing.cells}"
            bar.show(standing.runs_done, standing.runs, f"{points} points")
            if standing.cell is not None:
                bar.note(f"{points}: {', '.join(f'{axis} {shown(v)}' for axis, v in standing.cell.items())}")

        return run_sweep(sweep, out, workers, progress)


def _replay(options: ReplayOptions) -> int:
    scheme, world = options.scheme, replace(options.experiment.world, tokens=options.tokens)
    check_scheme(scheme)
    if not is_bounded(scheme):
        raise UserError(
            f"replay shows a device that drafts for a verifier; {scheme} runs another arrangement"
        )
    if world.sites:
        raise UserError(
            "replay shows a world with one verifier; replace [[verifiers]] by [verifier] and [link]"
        )
    spans = timeline(world, policy_maker(scheme))
    if options.trace is None:
        print("\n".join(as_lines(spans)))
        return 0
    write_out("the trace", options.trace, json.dumps(as_trace_events(spans)))
    print(f"written: {options.trace}; open it at https://ui.perfetto.dev")
    return 0


def print_table(experiment: Experiment, outcomes: Sequence[SchemeOutcome]) -> None:
    head, *lines = report_lines(experiment, outcomes)
    print(Painter(sys.stdout).bold(head), *lines, sep="\n")


def report_lines(experiment: Experiment, outcomes: Sequence[SchemeOutcome]) -> list[str]:
    """Return a line about the world, the figures of each scheme as a table, and what they mean."""
    lines = [heading(experiment), *table(TITLES, table_rows(outcomes), left=("scheme",))]
    lines.append("± is the standard error over seeds; steps, rows, drafted and bytes are per committed token")
    if not all(outcome.figures.identical for outcome in outcomes):
        lines.append("* writes another text than the target")
    return lines


# advise -----------------------------------------------------------------------------------------------------

ADVISED_TOKENS = 200  # of each simulated text, so that advice takes seconds


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(WorkersOption, JsonOption):
    """Declares a network and two models. Raises `UserError`."""

    rtt: float = setting(REQUIRED, "round-trip time to the server", "MS")
    step: float = setting(REQUIRED, "time of a step of the target model", "MS")
    draft: float = setting(REQUIRED, "time of a step of the draft model", "MS")
    draft_per_node: float = setting(0.3, "time of each further node of a draft step", "MS")
    acceptance: float | None = setting(
        None, "probability that the draft's best token is right", "A", low=0, high=1
    )
    recording: Path | None = setting(None, "recording of a real draft instead", "FILE")
    repeats: int = setting(3, "number of seeds", "N")

    def __post_init__(self) -> None:
        if (self.acceptance is None) == (self.recording is None):
            raise UserError("--acceptance and --recording both describe the draft; give one of them")

    @property
    def world(self) -> World:
        if self.recording is not None:
            draft: Draft = recorded_draft(self.recording.name, read_recording(self.recording))
        else:
            assert self.acceptance is not None, "one of both is required"
            draft = BetaDraft(mean=self.acceptance)
        return World(
            link=LinkSpec(rtt=self.rtt / 1e3),
            device=DeviceSpec(self.draft / 1e3, self.draft_per_node / 1e3),
            verifier=VerifierSpec(step_time=self.step / 1e3),
            draft=draft,
            tokens=ADVISED_TOKENS,
        )


def _advise(options: AdviseOptions) -> int:
    world = options.world
    advice = advise(world, options.repeats, options.workers, note)
    if options.json:
        print(json.dumps(advice_json(world, advice), indent=2))
        return 0
    if options.recording is not None:
        right = 100 * world.draft.mean
        print(f"The draft's best token is right {right:.0f} % of the time in {options.recording}.")
    print("\n".join(in_words(world, advice)))
    return 0


# plot -------------------------------------------------------------------------------------------------------

PLOT = """\
Draw the results of a sweep. The kinds:

  pace      ms per token against an axis, a line per scheme: mean, and 95th percentile of windows of 16 tokens
  speedup   how many times as fast as server streaming, over round trip and acceptance
  capacity  tokens per second of a client against the number of clients or the rate of sessions

Axes of the sweep that a kind does not use become panels; --at selects values of an axis."""

PICTURES: dict[str, Callable[[list[Row], PlotOptions, str], None]] = {
    "pace": lambda rows, options, caption: plot_pace(rows, options.out, options.x, caption),
    "speedup": lambda rows, options, caption: plot_speedup(
        rows, options.out, options.scheme, options.x, caption
    ),
    "capacity": lambda rows, options, caption: plot_capacity(rows, options.out, caption),
}


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Declares a picture of a sweep."""

    folder: Path = setting(REQUIRED, "folder of `sweep --out`", is_argument=True)
    kind: str = setting("pace", "kind of the picture", choices=tuple(PICTURES))
    out: Path = setting(REQUIRED, "picture: .png, .svg or .pdf", "FILE")
    x: str = setting("rtt_ms", "horizontal axis of pace and speedup", "AXIS")
    scheme: str = setting(FORERUN, "scheme whose speed-up is drawn", "NAME")
    at: tuple[str, ...] = setting((), "only these points of the sweep; may be repeated", "AXIS=V,V,...")


def _plot(options: PlotOptions) -> int:
    rows, caption = read_results(options.folder), caption_of(options.folder)
    PICTURES[options.kind](rows_at(rows, options.at), options, caption)
    print(f"drawn: {options.out}" + (f" ({caption})" if caption else ""))
    return 0
