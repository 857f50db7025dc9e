"""Compares growth policies at real sizes: real edges, link, wire and scheduler; an oracle as target.

A cell is a round trip, a step time, a temperature, a draft, and whether repeated text is proposed. In each
cell every policy gets an edge of its own, started anew, which writes all texts in a row. The edges take turns
text by text, so that all of them see the same machine, and only one of them works at a time. Beside each pace
stands the simulator's.

Time may pass more slowly than on a clock, except for the draft: then link and target take `slowdown` times as
long, and all times are divided by it. So the draft stands for one on a device that much faster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from common.errors import UserError
from edge_client.formats.detokenizer import spelled
from forerun.options import write_out
from lab.bench.report import table
from lab.benchmarks.real_sizes.pair import Pair, PairText, Prompt
from lab.benchmarks.real_sizes.predicted import DraftRecord, TargetSteps, predict
from lab.rig import Rig, RigEdge, RigProcess, RigSettings, words_of
from simulator.documents import read_text
from simulator.figures import as_json, figures, pace, rounded
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader

ORACLE = "lab.benchmarks.real_sizes.oracle"
ADAPTIVE = "adaptive"

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """Describes a setting in which policies are compared."""

    rtt_ms: float
    step_ms: float
    temperature: float
    draft: str
    recall: bool  # both sides propose repeated text

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        return cls(row["rtt_ms"], row["step_ms"], row["temperature"], row["draft"], row["recall"])

    def __str__(self) -> str:
        lookup = ", lookups" if self.recall else ""
        return (
            f"round trip {self.rtt_ms:g} ms, target step {self.step_ms:g} ms, temperature "
            f"{self.temperature:g}, draft {self.draft}{lookup}"
        )


@dataclass(frozen=True, slots=True)
class EndToEndSettings:
    """Holds the settings that all cells share."""

    prompt_row_ms: float
    row_ms: float  # of each further row of a step
    slowdown: float
    policies: tuple[str, ...]
    num_texts: int
    num_tokens: int

    def slow(self, ms: float) -> float:
        """Return the clock's milliseconds."""
        return ms * self.slowdown

    def link(self, cell: Cell) -> LinkSpec:
        return LinkSpec(rtt=1e-3 * self.slow(cell.rtt_ms))

    def steps(self, cell: Cell) -> TargetSteps:
        """Return the target's steps, for the simulator."""
        step, row, prompt_row = (1e-3 * self.slow(t) for t in (cell.step_ms, self.row_ms, self.prompt_row_ms))
        return TargetSteps(step, row, recall=cell.recall, time_per_prompt_row=prompt_row)

    def timed(self, run: Run) -> Run:
        """Return a run in the time that passes more slowly."""
        stats = {**run["stats"], "draft_time": run["stats"]["draft_time"] / self.slowdown}
        return {**run, "arrivals_ms": [at / self.slowdown for at in run["arrivals_ms"]], "stats": stats}


class OracleRig(Rig):
    """Runs a verifier that knows its texts, and an edge for each name in `edges`."""

    def __init__(self, pair: Pair, cell: Cell, settings: EndToEndSettings, edges: Sequence[str]) -> None:
        draft = str(pair.draft)
        rtt_ms = settings.slow(cell.rtt_ms)
        tokens = str(pair.target) if pair.has_other_tokens else ""
        super().__init__(RigSettings(str(pair.target), draft, rtt_ms, recall=cell.recall, tokens=tokens))
        times = {"step": cell.step_ms, "prompt-row": settings.prompt_row_ms, "row": settings.row_ms}
        self._oracle = ["--texts", str(pair.texts)]
        for name, time_ms in times.items():
            self._oracle += [f"--{name}", f"{settings.slow(time_ms):g}"]
        self._names = list(edges)
        self._edges: dict[str, RigEdge] = {}

    async def _begin(self) -> None:
        await super()._begin()
        assert self._edge is not None, "started just now"
        self._edges[self._names[0]] = self._edge
        for name in self._names[1:]:
            self._edges[name] = await self.start_linked_edge()
        if self._cores:  # this process, which is the link, stays off the drafter's core
            self._stack.callback(os.sched_setaffinity, 0, self._cores)
            os.sched_setaffinity(0, self._cores[1:])

    def use(self, name: str) -> None:
        """Select the edge that writes the next texts."""
        self._edge = self._edges[name]

    async def _start_verifier(self) -> tuple[RigProcess, str]:
        options = [*self._verifier_options(), *self._oracle, "--no-prefix-cache"]  # each prompt is read
        return await self.start_verifier(*options, module=ORACLE)


async def measure(
    pair: Pair,
    cell: Cell,
    settings: EndToEndSettings,
    prompts: Sequence[Prompt],
    texts: Sequence[PairText],
    record: DraftRecord,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure every policy on every text of one cell."""
    runs: dict[str, list[Run]] = {policy: [] for policy in settings.policies}
    async with OracleRig(pair, cell, settings, settings.policies) as rig:
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True), 1):
            for policy in settings.policies:
                progress(f"{cell}: text {number} of {len(texts)}, {policy}")
                rig.use(policy)
                run = await rig.complete(prompt.text, policy, asdict(text.sampling))
                runs[policy].append(settings.timed(run))
    with words_of(str(pair.target)) as words:
        own = [spelled(words, text.tokens) for text in texts]
    rows = dict[str, Any]()
    for policy in settings.policies:
        predicted = [
            settings.timed(predict(text, place, record, policy, settings.link(cell), settings.steps(cell)))
            for place, text in enumerate(texts)
        ]
        rows[policy] = _row(runs[policy], predicted, prompts, own)
    return {
        **asdict(cell),
        "kinds": {
            kind: {
                "draft_right": rounded(_share_right([record.texts[place] for place in places])),
                "repeated": rounded(fmean(texts[place].repeated for place in places)),
            }
            for kind, places in _places(prompts).items()
        },
        "policies": rows,
    }


def _places(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    """Return the places of each kind's prompts."""
    by_kind = dict[str, list[int]]()
    for place, prompt in enumerate(prompts):
        by_kind.setdefault(prompt.kind, []).append(place)
    return by_kind


def _share_right(texts: Sequence[RecordedText]) -> float:
    """Return the share of tokens that are the draft's best."""
    return Recording(RecordingHeader("", "", 0.0, 0), tuple(texts)).hit_rate


def _row(
    runs: Sequence[Run], predicted: Sequence[Run], prompts: Sequence[Prompt], texts: Sequence[str]
) -> dict[str, Any]:
    """A policy's figures: of all texts, of the first after the edge's start, and of the later ones; by kind
    measured and predicted."""
    return {
        **_figures(runs, texts),
        "predicted_ms_per_token": rounded(pace(predicted)),
        "by_kind": {
            kind: {
                "ms_per_token": rounded(pace([runs[place] for place in places])),
                "predicted_ms_per_token": rounded(pace([predicted[place] for place in places])),
            }
            for kind, places in _places(prompts).items()
        },
        "first_text": _figures(runs[:1], texts[:1]),
        "later_texts": _figures(runs[1:], texts[1:]) if runs[1:] else None,
        "ms_per_token_by_text": [rounded(pace([run])) for run in runs],
        "modes": [[f"{each['mode']}: {each['why']}" for each in run["modes"]] for run in runs],
    }


def _figures(runs: Sequence[Run], texts: Sequence[str]) -> dict[str, Any]:
    """The shared keys, and what was accepted and what a draft step took."""
    total = {key: sum(run["stats"][key] for run in runs) for key in ("accepted", "draft_time", "draft_steps")}
    steps = total["draft_steps"]
    return {
        **as_json(figures(runs, texts)),
        "accepted_per_token": rounded(total["accepted"] / sum(len(run["arrivals_ms"]) for run in runs)),
        "draft_step_ms": rounded(1e3 * total["draft_time"] / steps) if steps else None,
    }


# The report -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class EndToEndReport:
    """Holds a row for each cell. `settings` are the options that all cells have in common."""

    settings: dict[str, Any]
    machine: dict[str, Any]  # where the first cell was measured
    rows: dict[Cell, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def resumed(cls, path: Path | None, settings: dict[str, Any], machine: dict[str, Any]) -> EndToEndReport:
        """Return the existing report, to continue it, or a new one. Raises `UserError` if options differ."""
        if path is None or not path.exists():
            return cls(settings, machine)
        try:
            document = json.loads(read_text("the report", path))
            rows = {Cell.of(row): row for row in document["results"]}
            report = cls(document["settings"], document["machine"], rows)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a report of this benchmark; give another file") from error
        if report.settings != settings:
            raise UserError(f"{path} was measured with other options; give another file")
        return report

    def write(self, path: Path) -> None:
        """Write all of the report or nothing. Raises `UserError`, `CapacityError`."""
        content = {"settings": self.settings, "machine": self.machine, "results": list(self.rows.values())}
        write_out("the report", path, json.dumps(content, indent=2) + "\n")


def lines_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Format one cell for a terminal."""
    yield f"{Cell.of(row)}"
    yield from table([{"kind": kind, **figures} for kind, figures in row["kinds"].items()])
    shown = (
        "ms_per_token",
        "predicted_ms_per_token",
        "ttft_ms",
        "target_steps_per_token",
        "evaluated_nodes_per_token",
        "bytes_up_per_token",
        "accepted_per_token",
        "draft_step_ms",
    )
    parts = ("first_text", "later_texts")
    rows = [
        {
            "policy": name,
            **{kind: each["ms_per_token"] for kind, each in figures["by_kind"].items()},
            **{part: (figures[part] or {}).get("ms_per_token") for part in parts},
            **{key: figures[key] for key in (*shown, "identical")},
        }
        for name, figures in row["policies"].items()
    ]
    yield from table(rows)
    ratios = [(label, ratio(row, part)) for label, part in (("all", ""), ("first", "first_text"))]
    told = ", ".join(f"{value:.3f} ({label})" for label, value in ratios if value is not None)
    if told:
        yield f"adaptive over the best of the others, texts: {told}"


def ratio(row: Mapping[str, Any], part: str = "") -> float | None:
    """Return ms per token of adaptive over the best other policy's; None without both."""
    paces = {name: (own[part] if part else own)["ms_per_token"] for name, own in row["policies"].items()}
    mine = paces.pop(ADAPTIVE, None)
    return None if mine is None or not paces else mine / min(paces.values())
