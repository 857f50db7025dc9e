"""The file of `benchmarks.wide_area`: what is in it, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from benchmarks import reports
from benchmarks.reports import Row
from common.figures import Figures, as_json, figures, pace, rounded
from forerun.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST, Measured

COLOCATED, DEVICE_ONLY = "colocated", "device_only"

TITLES = {
    SERVER_STREAMING: "streaming",
    SYNC_BEST: "best sync",
    "chain": "chain",
    "tree": "tree",
    FORERUN: "forerun",
    COLOCATED: "co-located",
    DEVICE_ONLY: "device*",
}
"""Of the schemes, in the order of the tables."""

SPEEDUP = "speedup_over_server_streaming"
STEPS = ("draft_step_ms", "target_step_ms")
FIGURES = (*(each.name for each in fields(Figures) if each.name != "identical"), *STEPS, SPEEDUP)
"""What a table may show."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: where the schemes are compared. Times in ms."""

    floor_ms: float
    temperature: float
    rtt_ms: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Setting:
        return cls(row["floor_ms"], row["temperature"], row["rtt_ms"])

    def __str__(self) -> str:
        return f"floor {self.floor_ms:g} ms, temperature {self.temperature:g}, RTT {self.rtt_ms:g} ms"


class Report(reports.Report[Setting]):
    """What was measured, a row for each setting."""

    key_of = staticmethod(Setting.of)

    def add(self, setting: Setting, row: Row, with_colocated: bool) -> None:
        """A row that was measured. Co-located speculation is the best synchronous block of the same floor and
        temperature at RTT 0, which has to be there by then."""
        if with_colocated:
            near = self.rows[Setting(setting.floor_ms, setting.temperature, 0.0)] if setting.rtt_ms else row
            row["schemes"][COLOCATED] = _colocated(near, setting.rtt_ms)
        row[SPEEDUP] = _speedups(row["schemes"])
        self.rows[setting] = row


def row_of(setting: Setting, measured: Measured, identical_after_cut: bool) -> Row:
    """Everything that a setting's runs tell; texts are held against server streaming's."""
    references = [run["tokens"] for run in measured.runs[SERVER_STREAMING]]
    return {
        "floor_ms": setting.floor_ms,
        "temperature": setting.temperature,
        "rtt_ms": setting.rtt_ms,
        "sync_best_block": measured.best_block,
        "sync_search_ms_per_token": {str(block): rounded(found) for block, found in measured.blocks.items()},
        "identical_after_cut": identical_after_cut,
        "schemes": {name: _scheme(name, runs, references) for name, runs in measured.runs.items()},
    }


def _scheme(name: str, runs: Sequence[Mapping[str, Any]], references: Sequence[Sequence[int]]) -> Row:
    """The shared figures and, in ms, what a step of either model took.

    A device alone writes its own text: whether that is identical is not asked. It sends nothing: what the
    link carried meanwhile were HTTP/2's own frames.
    """
    found = as_json(figures([dict(run) for run in runs], references))
    if name == DEVICE_ONLY:
        found.update(identical=None, bytes_up_per_token=0.0, bytes_down_per_token=0.0)
    return {
        **found,
        "text_of": "draft" if name == DEVICE_ONLY else "target",
        "draft_step_ms": _mean_ms(runs, "draft_time", "draft_steps"),
        "target_step_ms": _mean_ms(runs, "compute_time", "target_steps"),
        "ms_per_token_by_prompt": [rounded(pace([dict(run)])) for run in runs],
    }


def _mean_ms(runs: Sequence[Mapping[str, Any]], seconds: str, steps: str) -> float | None:
    """None where no such step was taken."""
    count = sum(run["stats"][steps] for run in runs)
    return rounded(1e3 * sum(run["stats"][seconds] for run in runs) / count) if count else None


def _colocated(near: Row, rtt_ms: float) -> Row:
    """At RTT 0 the draft is beside the target. How long the user's link is moves its first token alone, and
    what drafts travel does so within the server."""
    found: Row = near["schemes"][SYNC_BEST]
    return {
        **found,
        "ttft_ms": rounded(found["ttft_ms"] + rtt_ms),
        "bytes_up_per_token": None,
        "bytes_down_per_token": None,
        "block": near["sync_best_block"],
        "measured_at_rtt_ms": 0.0,
    }


def _speedups(schemes: Mapping[str, Row]) -> dict[str, float | None]:
    slow = schemes[SERVER_STREAMING]["ms_per_token"]
    return {name: rounded(slow / found["ms_per_token"]) for name, found in schemes.items()}


# Tables -----------------------------------------------------------------------------------------------------


def table(report: Report, figure: str = "ms_per_token") -> str:
    """One line a setting, a column a scheme, for people. `figure` is one of `FIGURES`."""
    rows = list(report.rows.values())
    names = [name for name in TITLES if any(name in row["schemes"] for row in rows)]
    has_block = SYNC_BEST in names
    heads = [f"{TITLES[name]:>11}" for name in names]
    lines = [f"{figure}\nfloor    T    RTT {''.join(heads)}{'   k' * has_block}  identical  after a cut"]
    for row in rows:
        cells = "".join(f"{_cell(row, name, figure):>11}" for name in names)
        block = f"{row['sync_best_block'] or '-':>4}" * has_block
        lines.append(
            f"{row['floor_ms']:5g} {row['temperature']:4g} {row['rtt_ms']:6g} {cells}{block}"
            f"{_yes(is_identical(row)):>11}{_yes(row['identical_after_cut']):>13}"
        )
    if DEVICE_ONLY in names:
        lines.append(
            "* the draft model alone: its own text, not the target's; identical is asked of the others"
        )
    return "\n".join(lines)


def is_identical(row: Row) -> bool:
    """Whether every text that must be the target's is."""
    return all(found["identical"] is not False for found in row["schemes"].values())


def _cell(row: Row, name: str, figure: str) -> str:
    """Empty where the scheme was not run or has no such figure."""
    found = row["schemes"].get(name, {})
    value = row[SPEEDUP].get(name) if figure == SPEEDUP else found.get(figure)
    return "" if value is None else f"{value:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
