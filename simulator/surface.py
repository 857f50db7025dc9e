"""Ratios of two schemes over round trip and acceptance, as coloured surfaces with contours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from common.errors import UserError
from simulator.palette import Line
from simulator.tables import Row

FASTER = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
SLOWER = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Steps of the colours; beyond the ends the last colour goes on."""

Surface = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Values of x, acceptances, and the ratio at [acceptance, x]."""


def surface_of(rows: Sequence[Row], scheme: str, over: str, x: str) -> Surface:
    """How many times as fast as `over` the scheme is. Raises `UserError` where a point is not there, or its
    texts have no pace."""
    across, up = (np.array(sorted({row[axis] for row in rows})) for axis in (x, "mean"))
    pace = {(row["scheme"], row[x], row["mean"]): row["ms_per_token"] for row in rows}
    without = [point for point, found in pace.items() if not found and point[0] in (scheme, over)]
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
    """Steps that enclose all ratios."""
    steps = np.array([*SLOWER, *FASTER])
    first = int(steps.searchsorted(min(ratio.min() for ratio in ratios), side="right")) - 1
    last = int(steps.searchsorted(max(ratio.max() for ratio in ratios)))
    first = min(max(first, 0), len(steps) - 2)
    return [float(step) for step in steps[first : max(last, first + 1) + 1]]


def fill(axes: Any, surface: Surface, levels: Sequence[float]) -> Any:
    """Orange where the scheme is slower, violet where it is faster, paler towards 1; a dot at each point."""
    from matplotlib.colors import LogNorm

    across, up, ratio = surface
    most = max(2.0, levels[-1], 1 / levels[0])
    filled = axes.contourf(
        across,
        up,
        ratio,
        levels=levels,
        cmap="PuOr",
        norm=LogNorm(1 / most, most),
        extend=_extend(ratio, levels),
    )
    points = np.meshgrid(across, up)
    axes.plot(*(each.ravel() for each in points), ".", color="black", markersize=3, alpha=0.6, clip_on=False)
    return filled


def _extend(ratio: np.ndarray, levels: Sequence[float]) -> Literal["neither", "min", "max", "both"]:
    """At which ends of the colours ratios lie beyond the last step."""
    is_below, is_above = ratio.min() < levels[0], ratio.max() > levels[-1]
    if is_below and is_above:
        return "both"
    return "min" if is_below else "max" if is_above else "neither"


def contour(axes: Any, surface: Surface, colour: str, line: Line, label: str, meaning: str) -> dict[str, Any]:
    """Where the ratio is 1, with its entry for the legend; nothing where it is nowhere 1."""
    from matplotlib.lines import Line2D

    across, up, ratio = surface
    if not ratio.min() < 1 < ratio.max():
        return {}
    drawn = axes.contour(across, up, ratio, levels=[1.0], colors=[colour], linestyles=[line], linewidths=1.8)
    axes.clabel(drawn, fmt={1.0: label}, fontsize=8)
    return {meaning: Line2D([], [], color=colour, linestyle=line, linewidth=1.8, label=meaning)}
