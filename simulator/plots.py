"""Plots sweeps. matplotlib is loaded only when a plot is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from simulator.canvas import (
    AXIS_WORDS,
    Line,
    Sheet,
    Style,
    drawing,
    grouped,
    handles,
    numbers,
    schemes_of,
    styles,
    varied,
)
from simulator.schemes import COLOCATED, FORERUN, SERVER_STREAMING
from simulator.sweep import AXES, NUMBERS
from simulator.tables import Row

# Ratios of two schemes over round trip and acceptance, as coloured surfaces with contours.

FASTER = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
SLOWER = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Steps of the colours; beyond the ends the last colour goes on."""

Surface = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Values of x, acceptances, and the ratio at [acceptance, x]."""


def surface_of(rows: Sequence[Row], scheme: str, over: str, x: str) -> Surface:
    """Return how many times as fast as `over` the scheme is. Raises `UserError` if a point is missing, or
    if its texts have no pace."""
    across, up = (np.array(sorted({row[axis] for row in rows})) for axis in (x, "mean"))
    pace = {(row["scheme"], row[x], row["mean"]): row["ms_per_token"] for row in rows}
    without = [point for point, ms in pace.items() if not ms and point[0] in (scheme, over)]
    if without:
        raise UserError(f"the texts of the point {without[0]} are too short to have a pace")
    try:
        ratio = [[pace[over, a, m] / pace[scheme, a, m] for a in across] for m in up]
    except KeyError as error:
        raise UserError(
            f"the sweep has no finished point for {error.args[0]}; run the same sweep again to complete it"
        ) from None
    return across, up, np.array(ratio)


def steps_around(ratios: Sequence[np.ndarray]) -> list[float]:
    """Return steps that enclose all ratios."""
    steps = np.array([*SLOWER, *FASTER])
    first = int(steps.searchsorted(min(ratio.min() for ratio in ratios), side="right")) - 1
    last = int(steps.searchsorted(max(ratio.max() for ratio in ratios)))
    first = min(max(first, 0), len(steps) - 2)
    return [float(step) for step in steps[first : max(last, first + 1) + 1]]


def fill(axes: Any, surface: Surface, levels: Sequence[float]) -> Any:
    """Fill orange where the scheme is slower, violet where faster, paler towards 1; a dot at each point."""
    from matplotlib.colors import LogNorm

    across, up, ratio = surface
    most = max(2.0, levels[-1], 1 / levels[0])
    norm = LogNorm(1 / most, most)
    filled = axes.contourf(across, up, ratio, levels=levels, cmap="PuOr", norm=norm, extend="both")
    points = np.meshgrid(across, up)
    axes.plot(*(each.ravel() for each in points), ".", color="black", markersize=3, alpha=0.6, clip_on=False)
    return filled


def contour(axes: Any, surface: Surface, colour: str, line: Line, label: str, meaning: str) -> dict[str, Any]:
    """Draw the line of ratio 1, with its entry for the legend; nothing where the ratio is nowhere 1."""
    from matplotlib.lines import Line2D

    across, up, ratio = surface
    if not ratio.min() < 1 < ratio.max():
        return {}
    drawn = axes.contour(across, up, ratio, levels=[1.0], colors=[colour], linestyles=[line], linewidths=1.8)
    axes.clabel(drawn, fmt={1.0: label}, fontsize=8)
    return {meaning: Line2D([], [], color=colour, linestyle=line, linewidth=1.8, label=meaning)}


GRID = {"alpha": 0.3, "linewidth": 0.6}

# ms per token -----------------------------------------------------------------------------------------------


@drawing
def plot_pace(rows: Sequence[Row], out: Path, x: str = "rtt_ms", caption: str = "") -> None:
    """Plot ms per token against `x`, a line per scheme, a column of panels per combination of other axes.

    Above the mean, with bars of twice its standard error over seeds; below the slowest twentieth of windows
    of 16 tokens. The legend has the schemes as the lines end, the slowest first. Raises `UserError` if there
    is nothing to draw.
    """
    groups = grouped(rows, but=[x])
    _check_axis(rows, x)
    at_the_end = {str(row["scheme"]): row["ms_per_token"] or 0.0 for row in _sorted(rows, x)}
    looks = styles(sorted(schemes_of(rows), key=at_the_end.__getitem__, reverse=True))
    size = (3.7, 2.9) if len(groups) > 1 else (7.4, 3.6)
    sheet = Sheet(out, 2, len(groups), size, sharex=True, sharey="row")
    means, slow = sheet.panels
    for column, (title, inside) in enumerate(groups):
        means[column].set_title(title)
        slow[column].set_xlabel(AXIS_WORDS[x][0])
        for scheme, style in looks.items():
            line = _sorted([row for row in inside if row["scheme"] == scheme], x)
            errors = [2 * error for error in numbers(line, "ms_per_token_standard_error")]
            _line(means[column], line, x, "ms_per_token", style, yerr=errors, capsize=2)
            _line(slow[column], line, x, "ms_per_token_p95", style)
        for axes in (means[column], slow[column]):
            axes.set_ylim(bottom=0)
            axes.grid(**GRID)
    means[0].set_ylabel("ms per token, mean")
    slow[0].set_ylabel("ms per token, 95th percentile\nof windows of 16 tokens")
    sheet.legend(handles(looks))
    sheet.save(caption)


def _line(axes: Any, rows: Sequence[Row], x: str, y: str, style: Style, **more: Any) -> None:
    between_names = any(isinstance(row[x], str) for row in rows)
    axes.errorbar(
        [row[x] for row in rows],
        numbers(rows, y),
        color=style.colour,
        linestyle="" if between_names else style.line,
        marker=style.marker,
        markersize=4,
        linewidth=1.2,
        **more,
    )


# Speed-up ---------------------------------------------------------------------------------------------------


@drawing
def plot_speedup(
    rows: Sequence[Row], out: Path, scheme: str = FORERUN, x: str = "rtt_ms", caption: str = ""
) -> None:
    """Plot the speed of `scheme` as a multiple of server streaming's, over `x` and acceptance.

    A full line marks equal speed. A dashed line marks the speed of a draft beside the target, if the
    sweep has one: `colocated`, or else each scheme that begins so. Raises `UserError` if the sweep lacks an
    axis or a scheme, and for an `x` whose values are names.
    """
    _check_between(x)
    groups = grouped(rows, but=[x, "mean"])
    for axis in (x, "mean"):
        _check_axis(rows, axis, least=2)
    _check_schemes(rows, scheme, SERVER_STREAMING)
    surfaces = [surface_of(inside, scheme, SERVER_STREAMING, x) for _, inside in groups]
    levels = steps_around([ratio for _, _, ratio in surfaces])
    sheet = Sheet(out, 1, len(groups), (4.2, 3.4), sharex=True, sharey=True)
    filled: Any = None
    lines: dict[str, Any] = {}
    beside = {name: style for name, style in styles(schemes_of(rows)).items() if name in _colocated(rows)}
    for axes, (title, inside), surface in zip(sheet.panels[0], groups, surfaces, strict=True):
        filled = fill(axes, surface, levels)
        axes.set_title(title)
        axes.set_xlabel(AXIS_WORDS[x][0])
        lines |= contour(axes, surface, "black", "-", "1.0", f"{scheme} as fast as server streaming")
        for name, style in beside.items():
            label, other = ("co-located", "a draft beside the target") if name == COLOCATED else (name, name)
            other_surface = surface_of(inside, scheme, name, x)
            lines |= contour(axes, other_surface, style.colour, "--", label, f"{scheme} as fast as {other}")
    sheet.panels[0][0].set_ylabel(AXIS_WORDS["mean"][0])
    bar = sheet.figure.colorbar(filled, ax=list(sheet.panels[0]), ticks=levels, format="%g")
    bar.set_label(f"{scheme}, times as fast as server streaming")
    sheet.legend(list(lines.values()), columns=1)
    sheet.save(caption)


def _colocated(rows: Sequence[Row]) -> list[str]:
    """Schemes whose draft is beside the target: the best of them, or those with a policy of their own."""
    known = schemes_of(rows)
    return [COLOCATED] if COLOCATED in known else [name for name in known if name.startswith(f"{COLOCATED}:")]


def _check_between(x: str) -> None:
    """Check that the axes have numbers: colours are drawn between the values of two axes."""
    possible = [axis for axis in NUMBERS if axis != "mean"]
    if x in AXES and x not in possible:
        why = "its values are names, not numbers" if x != "mean" else "it is the vertical axis"
        raise UserError(
            f"a plot of speed-ups cannot have {x} to the right: {why}; --x may be {', '.join(possible)}"
        )


# Capacity ---------------------------------------------------------------------------------------------------


@drawing
def plot_capacity(rows: Sequence[Row], out: Path, caption: str = "") -> None:
    """Plot tokens per second of a client against the number of clients, or of sessions begun per second.

    The line is the median client, the band reaches from the slowest tenth to the fastest. Raises `UserError`
    if the sweep varied neither.
    """
    crowds = [axis for axis in ("clients", "rate_per_s") if rows and axis in varied(rows)]
    groups = grouped(rows, but=crowds[:1])
    if not crowds:
        raise UserError(
            "a plot of capacity needs a sweep over clients or rate_per_s; this one varied "
            f"{', '.join(varied(rows)) or 'nothing'}"
        )
    x = crowds[0]
    looks = styles(schemes_of(rows))
    sheet = Sheet(out, 1, len(groups), (4.4, 3.4), sharey=True)
    for axes, (title, inside) in zip(sheet.panels[0], groups, strict=True):
        axes.set_title(title)
        for scheme, style in looks.items():
            line = _sorted([row for row in inside if row["scheme"] == scheme], x)
            low, high = (numbers(line, f"session_rate_p{percent}") for percent in (10, 90))
            axes.fill_between(
                [row[x] for row in line], low, high, color=style.colour, alpha=0.18, linewidth=0
            )
            _line(axes, line, x, "session_rate_p50", style)
        axes.set_xlabel(AXIS_WORDS[x][0])
        axes.set_ylim(bottom=0)
        axes.grid(**GRID)
    sheet.panels[0][0].set_ylabel("tokens per second of a client\n(median; band: 10 to 90 %)")
    sheet.legend(handles(looks))
    sheet.save(caption)


# Rows -------------------------------------------------------------------------------------------------------


def _sorted(rows: Sequence[Row], x: str) -> Sequence[Row]:
    """Sort by the axis; names stay in the order of the sweep."""
    return (
        rows if any(isinstance(row[x], str) for row in rows) else sorted(rows, key=lambda row: float(row[x]))
    )


def _check_schemes(rows: Sequence[Row], *names: str) -> None:
    known = schemes_of(rows)
    for name in names:
        if name not in known:
            raise UserError(f"this plot needs the scheme {name}; the sweep has {', '.join(known)}")


def _check_axis(rows: Sequence[Row], axis: str, least: int = 1) -> None:
    known = [name for name in AXES if name in rows[0]]
    if axis not in known:
        raise UserError(f"the sweep did not vary {axis!r}; it varied {', '.join(known)}")
    if len({row[axis] for row in rows}) < least:
        raise UserError(f"the sweep has a single {axis}; this plot needs at least {least} of them")
