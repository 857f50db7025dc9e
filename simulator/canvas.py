"""Draws sheets of panels and writes them to files. matplotlib comes with the extra `simulation`."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec

from common.errors import UserError
from simulator.documents import write_error, write_whole
from simulator.schemes import (
    CLAIRVOYANT,
    COLOCATED,
    DEVICE_ONLY,
    FORERUN,
    SERVER_STREAMING,
    SYNC_BEST,
)
from simulator.sweep import AXES, panels, shown
from simulator.tables import Row

# What plots have in common: one colour and marker per scheme, and words for axes. No matplotlib here.

COLOURS = {
    SERVER_STREAMING: "#808080",
    SYNC_BEST: "#e06000",
    "chain": "#440077",
    FORERUN: "#00c080",
    CLAIRVOYANT: "#000000",
    COLOCATED: "#0050e0",
    DEVICE_ONLY: "#992200",
    "sync_delay_optimal": "#66ccff",
    "amusd": "#773333",
    "pearl": "#0099ff",
    "picospec": "#662255",
    "specedge": "#66dd66",
    "saguaro": "#5577aa",
    "parked": "#0000ff",
    "both_ends": "#000033",
}
"""A scheme keeps its colour in every plot. Found by search, to be told apart on white with normal sight,
without red cones and without green cones; markers help, too."""

MARKERS = dict(zip(COLOURS, "osv^*DXP<>phd8H", strict=True))

SPARE = (
    ("#eebb00", "o"),
    ("#bbaaff", "s"),
    ("#88aabb", "^"),
    ("#bbcc77", "D"),
    ("#444433", "v"),
    ("#ff88aa", "P"),
)
"""For all other growth policies and settings, of which there is no end."""

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


def styles(schemes: Iterable[str]) -> dict[str, Style]:
    """Return each scheme's style. A name without an entry in `COLOURS` gets a spare by its letters: the
    same in every plot, unless two names of one plot would share it."""
    looks: dict[str, Style] = {}
    taken: set[int] = set()
    for scheme in dict.fromkeys(schemes):
        if scheme in COLOURS:
            line: Line = "--" if scheme == CLAIRVOYANT else "-"
            looks[scheme] = Style(COLOURS[scheme], MARKERS[scheme], line)
        else:
            place = _free_place(scheme, taken)
            taken.add(place)
            looks[scheme] = Style(*SPARE[place], ":")
    return looks


def _free_place(name: str, taken: Collection[int]) -> int:
    first = zlib.crc32(name.encode())
    places = [(first + step) % len(SPARE) for step in range(len(SPARE))]
    return next((place for place in places if place not in taken), places[0])


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

    def save(self) -> None:
        """Write all of the file or nothing. Raises `UserError`, `CapacityError`."""
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
