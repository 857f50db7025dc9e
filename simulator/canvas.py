"""Sheets of panels and how they get into a file. matplotlib comes with the extra `simulation`."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from common.errors import UserError
from simulator.documents import write_error, write_whole
from simulator.palette import Style, title
from simulator.sweep import AXES, panels
from simulator.tables import Row

FORMATS = (".png", ".svg", ".pdf")
LETTER, KEY = 0.075, 0.55  # inches that a letter of a legend takes, and what stands before a name
DPI = 200  # of bitmaps: a column of a paper in print
MAX_PANELS = 8  # side by side; more are too small to read

FONTS: Any = {"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8.5, "svg.hashsalt": "forerun"}
"""The salt makes two drawings of the same results the same file."""


Plotted = ParamSpec("Plotted")


def drawing(plot: Callable[Plotted, None]) -> Callable[Plotted, None]:
    """For functions that draw: they run with our fonts, and raise `UserError` without matplotlib."""

    @wraps(plot)
    def run(*arguments: Plotted.args, **named: Plotted.kwargs) -> None:
        check_drawing()
        import matplotlib

        with matplotlib.rc_context(FONTS):
            plot(*arguments, **named)

    return run


def check_drawing() -> None:
    """Raises `UserError` without matplotlib, for who computes long before drawing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            "plots need matplotlib; install it with: pip install 'forerun[simulation]'"
        ) from error


class Sheet:
    """Rows and columns of panels with one legend below them. Raises `UserError` for a format that is none."""

    def __init__(
        self, out: Path, rows: int, columns: int, size: tuple[float, float] = (3.7, 2.9), **shared: Any
    ) -> None:
        """`size` of a panel in inches; `shared` is `sharex` and `sharey` of matplotlib's subplots."""
        from matplotlib.figure import Figure

        if out.suffix not in FORMATS:
            raise UserError(
                f"the plot {out} ends in {out.suffix or 'nothing'}; use one of {', '.join(FORMATS)}"
            )
        self._out = out
        self._width = max(5.0, size[0] * columns)  # a lone panel needs the width that its legend takes
        self.figure = Figure(figsize=(self._width, size[1] * rows + 0.5), layout="constrained")
        self.panels: Sequence[Sequence[Any]] = self.figure.subplots(rows, columns, squeeze=False, **shared)

    def legend(self, handles: Sequence[Any], columns: int | None = None) -> None:
        """Below all panels, so that it hides nothing; as many columns as there is room for, unless told."""
        if handles:
            longest = KEY + LETTER * max(len(str(each.get_label())) for each in handles)
            columns = columns or max(1, min(len(handles), int(self._width / longest)))
            self.figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)

    def save(self) -> None:
        """All of the file or nothing. Raises `UserError`, `CapacityError`."""
        drawn = io.BytesIO()
        metadata = {"Date": None} if self._out.suffix == ".svg" else None
        self.figure.savefig(drawn, dpi=DPI, format=self._out.suffix[1:], metadata=metadata)
        try:
            write_whole(self._out, drawn.getvalue())
        except OSError as error:
            raise write_error(f"the plot cannot be written to {self._out}", error) from error


def grouped(
    rows: Sequence[Row], but: Sequence[str] = (), most: int = MAX_PANELS
) -> list[tuple[str, list[Row]]]:
    """Rows by the values of the axes that vary, `but` some, each group with its title. Raises `UserError`."""
    if not rows:
        raise UserError("there is nothing to plot: the sweep has no finished point that was asked for")
    axes = [axis for axis in varied(rows) if axis not in but]
    groups = [(title(zip(axes, values, strict=True)), inside) for values, inside in panels(rows, *axes)]
    if len(groups) > most:
        raise UserError(
            f"the plot would have {len(groups)} panels, one for each combination of {', '.join(axes)}; "
            f"choose at most {most}, for example with --at {axes[0]}={rows[0][axes[0]]}"
        )
    return groups


def varied(rows: Sequence[Row]) -> list[str]:
    """Axes with more than one value."""
    return [axis for axis in AXES if axis in rows[0] and len({row[axis] for row in rows}) > 1]


def schemes_of(rows: Sequence[Row]) -> list[str]:
    """In order of appearance."""
    return list(dict.fromkeys(str(row["scheme"]) for row in rows))


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    """A figure of each row; NaN, which is not drawn, where there is none."""
    return [math.nan if row[column] is None else float(row[column]) for row in rows]


def handles(found: Mapping[str, Style], has_markers: bool = True) -> list[Any]:
    """For a legend, one per scheme."""
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [], [], label=name, color=style.colour, linestyle=style.line,
            marker=style.marker if has_markers else "", markersize=4,
        )
        for name, style in found.items()
    ]  # fmt: skip


def plain_numbers(axis: Any, subs: Sequence[float] = (1, 2, 5)) -> None:
    """On an axis with a logarithmic scale: these and ten times these and so on, written as people do."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
