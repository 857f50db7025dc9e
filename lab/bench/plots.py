"""Draws a capacity report: tokens per second, ms per token and time to first token over the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from lab.bench.load import ORACLE, SEQUENTIAL, STREAMING
from simulator.canvas import COLOURS, MARKERS, Sheet, Style, drawing, handles, numbers, styles
from simulator.schemes import FORERUN, SERVER_STREAMING

GRID = {"alpha": 0.3, "linewidth": 0.6}

AXES = {
    "sessions": "sessions at a time",
    "sessions_per_second": "sessions begun per second",
}

OWN = {
    STREAMING: Style(COLOURS[SERVER_STREAMING], MARKERS[SERVER_STREAMING]),
    "recorded": Style(COLOURS[FORERUN], MARKERS[FORERUN]),
    SEQUENTIAL: Style(COLOURS[SERVER_STREAMING], "", ":"),
}
"""Styles of schemes that have a colour in other plots, too."""

LABELS = {
    STREAMING: "plain streaming",
    "recorded": "Forerun, the draft model",
    SEQUENTIAL: "one session after the other",
}

PANELS = (
    ("tokens_per_second", "tokens per second"),
    ("ms_per_token", "ms per token: mean\n(thin: 95 % of windows of 16)"),
    ("ttft_ms_p50", "ms to the first token: median\n(thin: 95 %)"),
)
"""Figure and label of each panel: first the total rate, then latencies of one session."""

SLOW = {"ms_per_token": "ms_per_token_p95", "ttft_ms_p50": "ttft_ms_p95"}


@drawing
def plot_capacity(report: dict[str, Any], out: Path) -> None:
    """Draw three panels over the number or rate of sessions, with a line for each scheme and log axes.

    Raise `UserError` if the report has no points.
    """
    x, rows = rows_of(report)
    looks = styles_of(list(dict.fromkeys(row["scheme"] for row in rows)))
    sheet = Sheet(out, 1, len(PANELS), (3.9, 3.3), sharex=True)
    for axes, (column, label) in zip(sheet.panels[0], PANELS, strict=True):
        axes.set(xscale="log", yscale="log", xlabel=AXES[x], ylabel=label)
        for scheme, style in looks.items():
            if scheme != SEQUENTIAL or column == "tokens_per_second":  # it has the latencies of one session
                _draw(axes, [row for row in rows if row["scheme"] == scheme], (x, column), style)
        for axis in (axes.xaxis, axes.yaxis):
            plain_numbers(axis)
        axes.set_xticks(sorted({row[x] for row in rows}))
        axes.grid(**GRID)
    sheet.legend(handles({LABELS.get(name, f"Forerun, {name}"): style for name, style in looks.items()}))
    sheet.save()


def rows_of(report: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the axis, and a row for each point and scheme in the order of the axis."""
    points = report.get("points", [])
    x = next((axis for axis in AXES if points and axis in points[0]), None)
    if x is None:
        raise UserError("there is nothing to plot: the report has no points over sessions or their rate")
    rows = [
        {x: point[x], "scheme": name, **figures}
        for point in points
        for name, figures in point["schemes"].items()
    ]
    return x, sorted(rows, key=lambda row: float(row[x]))


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """Return the style of each scheme in the given order. Oracles are dashed, as no real draft is one."""
    spare = styles(name for name in names if name not in OWN)
    dashed = {name: replace(style, line="--") for name, style in spare.items() if name.startswith(ORACLE)}
    return {name: OWN.get(name) or dashed.get(name) or spare[name] for name in names}


def _draw(axes: Any, rows: Sequence[dict[str, Any]], columns: tuple[str, str], style: Style) -> None:
    x, column = columns
    known = [row for row in rows if row.get(column) is not None]
    look: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "markersize": 4}
    axes.plot([row[x] for row in known], numbers(known, column), marker=style.marker, linewidth=1.3, **look)
    slow = SLOW.get(column)
    if slow is not None:
        wide = [row for row in known if row.get(slow) is not None]
        axes.plot([row[x] for row in wide], numbers(wide, slow), linewidth=0.6, **look)


def plain_numbers(axis: Any, subs: Sequence[float] = (1, 2, 5)) -> None:
    """Write these numbers and their multiples by powers of ten in full on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
