"""The plot of `benchmarks.wide_area`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reports import Row
from benchmarks.wide_area_report import DEVICE_ONLY, SPEEDUP, TITLES, Report
from common.errors import UserError
from simulator.canvas import Sheet, drawing, handles, numbers, plain_numbers
from simulator.palette import LABELS, Style, styles


@drawing
def plot(report: Report, out: Path) -> None:
    """Speed-up over server streaming against the round trip: a column of panels per floor, a row per
    temperature, a line per scheme. Logarithmic upwards, as twice as fast is as far from 1 as half as fast.
    The device alone is told in words: its line would be far above all that write the target's text.

    Raises `UserError` if there is nothing to draw.
    """
    rows = list(report.rows.values())
    if not rows:
        raise UserError("there is nothing to plot: no setting of the report is measured yet")
    floors, temperatures = values(rows, "floor_ms"), values(rows, "temperature")
    drawn = [name for name in TITLES if name != DEVICE_ONLY]
    found = styles(name for name in drawn if any(name in row[SPEEDUP] for row in rows))
    sheet = Sheet(out, len(temperatures), len(floors), sharex=True, sharey=True)
    for line, temperature in zip(sheet.panels, temperatures, strict=True):
        for axes, floor in zip(line, floors, strict=True):
            inside = [row for row in rows if (row["floor_ms"], row["temperature"]) == (floor, temperature)]
            axes.set_title(f"target step {floor:g} ms, temperature {temperature:g}")
            _panel(axes, inside, found)
            _tell_device(axes, inside)
        line[0].set_ylabel("times as fast as\nserver streaming")
    for axes in sheet.panels[-1]:
        axes.set_xlabel(LABELS["rtt_ms"])
    sheet.legend(handles(found))
    sheet.save()


def values(rows: Sequence[Row], column: str) -> list[float]:
    """In increasing order, each once."""
    return sorted({row[column] for row in rows})


def _panel(axes: Any, rows: Sequence[Row], found: dict[str, Style]) -> None:
    axes.set_yscale("log")
    axes.margins(y=0.15)  # room for words above the lines
    plain_numbers(axes.yaxis)
    axes.grid(alpha=0.3, linewidth=0.6)
    for name, style in found.items():
        line = sorted((row for row in rows if name in row[SPEEDUP]), key=lambda row: float(row["rtt_ms"]))
        axes.plot(
            [row["rtt_ms"] for row in line],
            numbers([row[SPEEDUP] for row in line], name),
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
