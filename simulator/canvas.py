"""Draws sheets of panels and writes them to files. matplotlib comes with the extra `simulation`."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, ParamSpec

from common.errors import UserError
from simulator.documents import write_error, write_whole
from simulator.schemes import CLAIRVOYANT, SERVER_STREAMING
from simulator.sweep import AXES, panels, shown
from simulator.tables import Row

COLOURS = (
    *("#00c080", "#e06000", "#440077", "#0050e0", "#992200", "#66ccff", "#773333", "#0099ff", "#662255"),
    *("#66dd66", "#5577aa", "#eebb00", "#bbaaff", "#88aabb", "#bbcc77", "#444433", "#ff88aa"),
)
MARKERS = "osv^*DXP<>phd8H"
"""Of a plot's schemes, in turn. The first few are told apart on white with normal sight, without red cones
and without green cones; markers help, too."""

AXIS_WORDS = {
    "profile": ("network profile", "{}"),
    "association": ("association with verifiers", "association {}"),
    "rtt_ms": ("network round trip, ms", "RTT {} ms"),
    "jitter_ms": ("jitter (standard deviation, one way), ms", "jitter {} ms"),
    "loss": ("chance of losing a packet", "loss {}"),
    "mean": ("acceptance of the draft's best token", "acceptance {}"),
    "step_ms": ("target step, ms", "target step {} ms"),
    "draft_ms": ("draft step, ms", "draft step {} ms"),
    "clients": ("clients", "{} clients"),
    "rate_per_s": ("sessions begun per second", "{} sessions/s"),
}
"""What stands at an axis of a plot, and above a panel with the value in its place."""


Line = Literal["-", "--", ":"]


@dataclass(frozen=True, slots=True)
class Style:
    """Describes a scheme's look. The bound is dashed: it cannot be run in practice."""

    colour: str
    marker: str
    line: Line = "-"


FIXED = {SERVER_STREAMING: Style("#808080", "o"), CLAIRVOYANT: Style("#000000", "s", "--")}


def styles(schemes: Iterable[str]) -> dict[str, Style]:
    """Return each scheme's style. Server streaming is always grey, and the bound always black."""
    looks = zip(cycle(COLOURS), cycle(MARKERS), strict=False)  # both are endless
    return {scheme: FIXED.get(scheme) or Style(*next(looks)) for scheme in dict.fromkeys(schemes)}


FORMATS = (".png", ".svg", ".pdf")
LETTER, KEY = 0.075, 0.55  # inches that a letter of a legend takes, and what stands before a name
DPI = 200  # of bitmaps: a column of a paper in print
MAX_PANELS = 8  # side by side; more are too small to read

FONTS: Any = {"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8.5, "svg.hashsalt": "forerun"}
"""The salt makes two drawings of the same results the same file."""


Plotted = ParamSpec("Plotted")


def drawing(plot: Callable[Plotted, None]) -> Callable[Plotted, None]:
    """Decorate functions that draw: they run with our fonts, and raise `UserError` without matplotlib."""

    @wraps(plot)
    def run(*arguments: Plotted.args, **named: Plotted.kwargs) -> None:
        check_drawing()
        import matplotlib

        with matplotlib.rc_context(FONTS):
            plot(*arguments, **named)

    return run


def check_drawing() -> None:
    """Raise `UserError` without matplotlib, for callers that compute long before drawing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            "plots need matplotlib; install it with: pip install 'forerun[simulation]'"
        ) from error


class Sheet:
    """Lays out panels with one legend below them. Raises `UserError` for an unknown file format."""

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
        """Draw the legend below all panels, so that it hides nothing; by default as wide as there is room."""
        if handles:
            longest = KEY + LETTER * max(len(str(each.get_label())) for each in handles)
            columns = columns or max(1, min(len(handles), int(self._width / longest)))
            self.figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)

    def save(self, caption: str = "") -> None:
        """Write all of the file or nothing, with a `caption` above the panels. Raises `UserError`,
        `CapacityError`."""
        if caption:
            self.figure.suptitle(caption, fontsize="medium")
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
    """Group rows by the values of the varying axes except `but`, with titles. Raises `UserError`."""
    if not rows:
        raise UserError("there is nothing to plot: the sweep has no finished point of this selection")
    axes = [axis for axis in varied(rows) if axis not in but]
    titles = [AXIS_WORDS[axis][1] for axis in axes]
    groups = [
        (", ".join(map(str.format, titles, map(shown, values))), inside)
        for values, inside in panels(rows, *axes)
    ]
    if len(groups) > most:
        raise UserError(
            f"the plot would have {len(groups)} panels, one for each combination of {', '.join(axes)}; "
            f"choose at most {most}, for example with --at {axes[0]}={rows[0][axes[0]]}"
        )
    return groups


def varied(rows: Sequence[Row]) -> list[str]:
    """Return the axes with more than one value."""
    return [axis for axis in AXES if axis in rows[0] and len({row[axis] for row in rows}) > 1]


def schemes_of(rows: Sequence[Row]) -> list[str]:
    """List the schemes in order of appearance."""
    return list(dict.fromkeys(str(row["scheme"]) for row in rows))


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    """Return a figure of each row; NaN, which is not drawn, if a row has none."""
    return [math.nan if row[column] is None else float(row[column]) for row in rows]


def handles(looks: Mapping[str, Style]) -> list[Any]:
    """Make a legend's handles, one per scheme."""
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [], [], label=name, color=style.colour, linestyle=style.line,
            marker=style.marker, markersize=4,
        )
        for name, style in looks.items()
    ]  # fmt: skip
