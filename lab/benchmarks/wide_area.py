"""Measures Forerun beside its alternatives, on real models over links of several lengths.

    python -m lab.benchmarks.wide_area measure --out wide_area.json
    python -m lab.benchmarks.wide_area table wide_area.json
    python -m lab.benchmarks.wide_area plot wide_area.json --out wide_area.png

Every setting is a step floor, a temperature and a round trip. In each the schemes run on the same prompts,
interleaved prompt by prompt: server streaming, the best synchronous block, `chain`, `tree`, Forerun, and the
device alone, whose text is the draft's. With --drafter a second verifier has a drafter of its own: `heads
alone` streams from it, `both ends` is Forerun with it. Co-located speculation (the draft beside the target,
on a processor like the device's) is the best synchronous block over a link of RTT 0. One rig (verifier, link,
edge) serves all settings of a floor; the link's round trip is changed between them. After each setting one
more text is written whose link is cut after its first words.

The file is written after every setting. The same command again continues an interrupted run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.texts.events import TextAdded, TextEnded
from forerun import demo_pair
from forerun.commands.comparison import HEADS_ALONE, MeasuredScheme, Progress, Search, measure
from forerun.rig import DEVICE, Rig, RigSettings, check_models
from forerun.terminal import ProgressBar
from lab.bench.plots import plain_numbers
from lab.bench.report import Machine
from lab.bench.report import settings_of as settings_given
from lab.bench.report import table as table_of
from lab.benchmarks import reports
from lab.benchmarks.reports import Row, add_prompts, carry_out, plain_parser_of, prompts_from
from simulator.canvas import AXIS_WORDS, Sheet, drawing, handles, styles
from simulator.figures import Figures, as_json, figures, pace, rounded
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST

COLOCATED, DEVICE_ONLY = "colocated", "device_only"
BOTH_ENDS = "both_ends"

TITLES = {
    SERVER_STREAMING: "streaming",
    SYNC_BEST: "best sync",
    "chain": "chain",
    "tree": "tree",
    FORERUN: "forerun",
    HEADS_ALONE: "heads alone",
    BOTH_ENDS: "both ends",
    COLOCATED: "co-located",
    DEVICE_ONLY: "device*",
}
"""Of the schemes, in the order of the tables."""

SPEEDUP = "speedup_over_server_streaming"
STEPS = ("draft_step_ms", "target_step_ms")
FIGURES = (*(each.name for each in fields(Figures) if each.name != "identical"), *STEPS, SPEEDUP)
"""What a table or a plot may show."""

AXES = {SPEEDUP: "times as fast as\nserver streaming", "ms_per_token": "ms per token"}
"""Names of a plot's axis, where the figure's own does not do."""

BLOCKS = (2, 4, 6, 8, 12, 16, 24)
"""Lengths searched for the best synchronous block: on every fifth prompt, and the best two on all."""

ROW_OPTIONS = ("rtt", "floor", "temperature")
"""What tells the rows of a report apart."""

EVERY, FINALISTS, PATIENCE = 5, 2, 2
POLICIES = {SERVER_STREAMING: "off", "chain": "chain", "tree": "tree", DEVICE_ONLY: DEVICE}
"""Of the schemes that need neither a search nor an option."""


@dataclass(frozen=True, slots=True)
class LinkSetting:
    """Describes the setting of a row. Times are in ms."""

    floor_ms: float
    temperature: float
    rtt_ms: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> LinkSetting:
        return cls(row["floor_ms"], row["temperature"], row["rtt_ms"])

    def __str__(self) -> str:
        return f"floor {self.floor_ms:g} ms, temperature {self.temperature:g}, RTT {self.rtt_ms:g} ms"


class WideAreaReport(reports.Report[LinkSetting]):
    """Holds a row for each setting."""

    key_of = staticmethod(LinkSetting.of)

    def add(self, setting: LinkSetting, row: Row, with_colocated: bool) -> None:
        """Add a measured row. Co-located speculation is the best synchronous block of the same floor and
        temperature at RTT 0, which must already be in the report."""
        if with_colocated:
            near = (
                self.rows[LinkSetting(setting.floor_ms, setting.temperature, 0.0)] if setting.rtt_ms else row
            )
            row["schemes"][COLOCATED] = _colocated(near, setting.rtt_ms)
        row[SPEEDUP] = _speedups(row["schemes"])
        self.rows[setting] = row


def row_of(setting: LinkSetting, measured: MeasuredScheme, identical_after_cut: bool) -> Row:
    """Return the row of a setting's runs; texts are compared with server streaming's."""
    references = [run["text"] for run in measured.runs[SERVER_STREAMING]]
    return {
        "floor_ms": setting.floor_ms,
        "temperature": setting.temperature,
        "rtt_ms": setting.rtt_ms,
        "sync_best_block": measured.best_block,
        "sync_search_ms_per_token": {str(block): rounded(ms) for block, ms in measured.blocks.items()},
        "identical_after_cut": identical_after_cut,
        "schemes": {name: _scheme(name, runs, references) for name, runs in measured.runs.items()},
    }


def _scheme(name: str, runs: Sequence[Mapping[str, Any]], references: Sequence[str]) -> Row:
    """The shared figures and, in ms, what a step of either model took.

    A device alone writes its own text: whether that is identical is not asked. It sends nothing: what the
    link carried meanwhile were HTTP/2's own frames.
    """
    keys = as_json(figures([dict(run) for run in runs], references))
    if name == DEVICE_ONLY:
        keys.update(identical=None, bytes_up_per_token=0.0, bytes_down_per_token=0.0)
    return {
        **keys,
        "text_of": "draft" if name == DEVICE_ONLY else "target",
        "draft_step_ms": _mean_ms(runs, "draft_time", "draft_steps"),
        "target_step_ms": _mean_ms(runs, "compute_time", "target_steps"),
        "ms_per_token_by_prompt": [rounded(pace([dict(run)])) for run in runs],
    }


def _mean_ms(runs: Sequence[Mapping[str, Any]], seconds: str, steps: str) -> float | None:
    """Return the mean in ms; None without such a step."""
    count = sum(run["stats"][steps] for run in runs)
    return rounded(1e3 * sum(run["stats"][seconds] for run in runs) / count) if count else None


def _colocated(near: Row, rtt_ms: float) -> Row:
    """At RTT 0 the draft is beside the target. How long the user's link is moves its first token alone, and
    what drafts travel does so within the server."""
    own: Row = near["schemes"][SYNC_BEST]
    return {
        **own,
        "ttft_ms": rounded(own["ttft_ms"] + rtt_ms),
        "bytes_up_per_token": None,
        "bytes_down_per_token": None,
        "block": near["sync_best_block"],
        "measured_at_rtt_ms": 0.0,
    }


def _speedups(schemes: Mapping[str, Row]) -> dict[str, float | None]:
    slow = schemes[SERVER_STREAMING]["ms_per_token"]
    return {name: rounded(slow / own["ms_per_token"]) for name, own in schemes.items()}


# Tables -----------------------------------------------------------------------------------------------------


def table(report: WideAreaReport, figure: str = "ms_per_token") -> list[str]:
    """Format a line per setting, a column per scheme. `figure` is one of `FIGURES`."""
    names = [name for name in TITLES if any(name in row["schemes"] for row in report.rows.values())]
    rows = [
        {
            "floor": row["floor_ms"],
            "T": row["temperature"],
            "RTT": row["rtt_ms"],
            **{TITLES[name]: _cell(row, name, figure) for name in names},
            "k": row["sync_best_block"],
            "identical": "yes" if is_identical(row) else "NO",
            "after a cut": "yes" if row["identical_after_cut"] else "NO",
        }
        for row in report.rows.values()
    ]
    note = "* the draft model alone: its own text, not the target's; identical covers the others only"
    return [figure, *table_of(rows), *([note] if DEVICE_ONLY in names else [])]


def is_identical(row: Row) -> bool:
    """Return whether every text that must be the target's is."""
    return all(own["identical"] is not False for own in row["schemes"].values())


def _cell(row: Row, name: str, figure: str) -> str | None:
    """Format a figure; None if the scheme was not run or has no such figure."""
    value = _value(row, name, figure)
    return None if value is None else f"{value:.2f}"


def _value(row: Row, name: str, figure: str) -> float | None:
    own: Mapping[str, float | None] = row[SPEEDUP] if figure == SPEEDUP else row["schemes"].get(name, {})
    return own.get(name if figure == SPEEDUP else figure)


# The plot ---------------------------------------------------------------------------------------------------


@drawing
def plot(report: WideAreaReport, out: Path, figure: str = SPEEDUP) -> None:
    """Plot a figure against the round trip: a column of panels per floor, a row per temperature, a line per
    scheme. Logarithmic upwards, as twice as fast is as far from 1 as half as fast. The device alone appears
    in words: its line would be far from all that write the target's text.

    Raises `UserError` if there is nothing to draw.
    """
    rows = list(report.rows.values())
    if not rows:
        raise UserError("there is nothing to plot: no setting of the report is measured yet")
    floors, temperatures = (sorted({row[name] for row in rows}) for name in ("floor_ms", "temperature"))
    drawn = [name for name in TITLES if name != DEVICE_ONLY]
    looks = styles(name for name in drawn if any(_value(row, name, figure) is not None for row in rows))
    sheet = Sheet(out, len(temperatures), len(floors), sharex=True, sharey=True)
    for line, temperature in zip(sheet.panels, temperatures, strict=True):
        for axes, floor in zip(line, floors, strict=True):
            inside = [row for row in rows if (row["floor_ms"], row["temperature"]) == (floor, temperature)]
            axes.set_title(f"target step {floor:g} ms, temperature {temperature:g}")
            _panel(axes, inside, looks, figure)
            _tell_device(axes, inside)
        line[0].set_ylabel(AXES.get(figure, figure.replace("_", " ")))
    for axes in sheet.panels[-1]:
        axes.set_xlabel(AXIS_WORDS["rtt_ms"][0])
    sheet.legend(handles({TITLES[name]: style for name, style in looks.items()}))
    sheet.save()


def _panel(axes: Any, rows: Sequence[Row], looks: Mapping[str, Any], figure: str) -> None:
    axes.set_yscale("log")
    axes.margins(y=0.15)  # room for words above the lines
    plain_numbers(axes.yaxis)
    axes.grid(alpha=0.3, linewidth=0.6)
    for name, style in looks.items():
        here = (row for row in rows if _value(row, name, figure) is not None)
        line = sorted(here, key=lambda row: float(row["rtt_ms"]))
        axes.plot(
            [row["rtt_ms"] for row in line],
            [_value(row, name, figure) for row in line],
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=4,
            linewidth=1.2,
        )


def _tell_device(axes: Any, rows: Sequence[Row]) -> None:
    ratios = [row[SPEEDUP][DEVICE_ONLY] for row in rows if DEVICE_ONLY in row[SPEEDUP]]
    if ratios:
        words = f"the draft alone, its own text: {statistics.median(ratios):.0f} times"
        axes.text(0.98, 0.97, words, transform=axes.transAxes, ha="right", va="top", fontsize="small")


# The command ------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser_of("wide_area", __doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_measure(actions.add_parser("measure", help="run everything; takes an hour or more"))
    shown = actions.add_parser("table", help="print a report as a table")
    shown.add_argument("report", type=Path, metavar="FILE")
    shown.add_argument("--figure", choices=FIGURES, default="ms_per_token", metavar="NAME")
    shown.set_defaults(
        run=lambda given: print(*table(WideAreaReport.read(given.report), given.figure), sep="\n")
    )
    drawn = actions.add_parser("plot", help="a figure against the round trip")
    drawn.add_argument("report", type=Path, metavar="FILE")
    drawn.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf")
    drawn.add_argument("--figure", choices=FIGURES, default=SPEEDUP, metavar="NAME")
    drawn.set_defaults(run=lambda given: plot(WideAreaReport.read(given.report), given.out, given.figure))
    return parser


def _add_measure(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--out", type=Path, required=True, metavar="FILE", help="the report, continued if it exists")
    option("--rtt", type=float, nargs="+", default=[0, 20, 60, 100, 200], metavar="MS")
    option("--floor", type=float, nargs="+", default=[10, 30, 60], metavar="MS", help="target step floor")
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option(
        "--schemes",
        nargs="+",
        choices=tuple(TITLES),
        default=list(TITLES),
        metavar="NAME",
        help="schemes to run (all): %(choices)s",
    )
    add_prompts(parser, 8)
    option("--first-prompt", type=int, default=0, metavar="I", help="prompts left out (%(default)s)")
    option("--blocks", type=int, nargs="+", default=list(BLOCKS), metavar="K", help="blocks to search")
    option("--max-tokens", type=int, default=96, metavar="N", help="tokens of each text (%(default)s)")
    option("--policy", default="adaptive", help="growth policy of the forerun scheme (%(default)s)")
    option("--recall", action="store_true", help="propose repeated text, on both sides")
    option("--seed", type=int, default=1)
    option("--target", default=str(demo_pair.TARGET_DIR), metavar="PATH")
    option("--draft", default=str(demo_pair.DRAFT_GGUF), metavar="PATH")
    option("--drafter", metavar="WHAT", help="the verifier's own, as for `forerun verify` (none)")
    parser.set_defaults(run=_measure)


def _measure(options: argparse.Namespace) -> None:
    prompts = prompts_from(options, options.first_prompt)
    check(options)
    report = WideAreaReport.resumed(options.out, common_settings(options, prompts), Machine().told())
    asyncio.run(measure_all(options, prompts, report))
    print(*table(report), sep="\n")


def check(options: argparse.Namespace) -> None:
    """Check the options before an hour is spent. Raises `UserError`, `UnavailableError`."""
    check_models(Path(options.target), Path(options.draft))
    make_policy(options.policy)
    for name in ROW_OPTIONS:
        if not all(0 <= value < float("inf") for value in getattr(options, name)):
            raise UserError(f"--{name} is {getattr(options, name)}; every value must be 0 or more")
    if min(options.blocks) < 1 or options.max_tokens < 2:
        raise UserError("--blocks must be 1 or more, and --max-tokens 2: a pace needs two tokens")


def common_settings(options: argparse.Namespace, prompts: Sequence[str]) -> dict[str, Any]:
    """Return the options that all rows of a report share: a continued report must have the same."""
    given = {name: each for name, each in settings_given(options).items() if name not in ROW_OPTIONS}
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
    return {**given, "schemes": schemes_of(options), "prompts_sha256": digest}


def schemes_of(options: argparse.Namespace) -> list[str]:
    """Return schemes in the order of the tables; the others are compared with server streaming."""
    absent = () if options.drafter else (HEADS_ALONE, BOTH_ENDS)
    wanted = {SERVER_STREAMING, *options.schemes}.difference(absent)
    return [name for name in TITLES if name in wanted]


def settings_of(options: argparse.Namespace) -> list[LinkSetting]:
    """Return all rows, floor by floor; RTT 0 comes first, and is added for a co-located draft."""
    rtts = [*options.rtt, *([0.0] if COLOCATED in options.schemes else [])]
    return [
        LinkSetting(floor, temperature, rtt)
        for floor in dict.fromkeys(map(float, options.floor))
        for temperature in dict.fromkeys(map(float, options.temperature))
        for rtt in sorted(set(map(float, rtts)))
    ]


def has_search(options: argparse.Namespace, setting: LinkSetting) -> bool:
    """Return whether the row has a search; the best block over no distance is the co-located draft."""
    return SYNC_BEST in options.schemes or (COLOCATED in options.schemes and setting.rtt_ms == 0)


async def measure_all(options: argparse.Namespace, prompts: Sequence[str], report: WideAreaReport) -> None:
    """Run the settings that the report lacks, and write it after each."""
    missing = [setting for setting in settings_of(options) if setting not in report.rows]
    done, total = 0, len(missing)
    with ProgressBar(sys.stderr) as bar:
        for floor_ms, settings in itertools.groupby(missing, lambda setting: setting.floor_ms):
            plain = RigSettings(options.target, options.draft, step_floor_ms=floor_ms, recall=options.recall)
            async with AsyncExitStack() as stack:
                rig, guessing = await stack.enter_async_context(Rig(plain)), None
                if options.drafter:
                    guessing = await stack.enter_async_context(Rig(replace(plain, drafter=options.drafter)))
                for setting in settings:
                    bar.note(f"{setting}")
                    progress = partial(bar.show, done, total)
                    row = await measure_setting(rig, guessing, options, prompts, setting, progress)
                    report.add(setting, row, COLOCATED in options.schemes)
                    report.write(options.out)
                    done += 1


async def measure_setting(
    rig: Rig,
    guessing: Rig | None,
    options: argparse.Namespace,
    prompts: Sequence[str],
    setting: LinkSetting,
    progress: Progress,
) -> Row:
    """Measure one row of the report."""
    params = SamplingParams(
        temperature=setting.temperature, max_tokens=options.max_tokens, seed=options.seed, ignore_eos=True
    )
    sampling = asdict(params)
    for each in (rig, guessing) if guessing is not None else (rig,):
        each.link.rtt(setting.rtt_ms)
    known = {**POLICIES, FORERUN: options.policy}
    policies = {name: known[name] for name in schemes_of(options) if name in known}
    search = (
        Search(tuple(options.blocks), EVERY, FINALISTS, PATIENCE) if has_search(options, setting) else None
    )
    guessed = {HEADS_ALONE: "off", BOTH_ENDS: options.policy}
    guessed = {name: policy for name, policy in guessed.items() if name in schemes_of(options)}
    measured = await measure(rig, prompts, sampling, policies, search, progress, guessing, guessed)
    reference = measured.runs[SERVER_STREAMING][0]["text"]
    survives = await _text_after_a_cut(rig, prompts[0], options.policy, sampling) == reference
    return row_of(setting, measured, survives)


async def _text_after_a_cut(rig: Rig, prompt: str, policy: str, sampling: dict[str, Any]) -> str | None:
    """A text whose link is reset after its first words; None if its session did not resume."""
    text, resumes = "", 0
    async for _, event in rig.events(prompt, policy, sampling):
        if isinstance(event, TextAdded):
            if not text:
                rig.link.cut()
            text += event.text
        elif isinstance(event, TextEnded):
            resumes = event.figures["resumes"]
    return text if resumes else None


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("wide_area", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
