"""The picture of kept and broken promises. matplotlib is loaded only when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_client.core.confidence import Prior
from simulator.canvas import Sheet, drawing, handles
from simulator.fitting import Text
from simulator.palette import Style
from simulator.plots import GRID
from simulator.reliability import (
    Bin,
    Promise,
    by_chance,
    by_depth,
    by_entropy,
    by_margin,
    by_rank,
    fixed_promises,
    learnt_promises,
)

STYLES = {
    "softmax of the scores": Style("#e06000", "s", ":"),
    "the prior, never learning": Style("#0050e0", "^", "--"),
    "learnt on the way": Style("#00a070", "o", "-"),
}
LEAST = 1e-3  # of a chance that is drawn; rarer ones stand at the edge

Signal = Callable[[Sequence[Promise]], list[Bin]]
SIGNALS: dict[str, Signal] = {
    "rank of the candidate": by_rank,
    "lead over the second, nats": by_margin,
    "entropy of the candidates, nats": by_entropy,
    "depth below the tip (8: or more)": by_depth,
}


@dataclass(frozen=True, slots=True)
class Reliability:
    """What one row of the picture shows: texts of one temperature that `prior` was not fitted on."""

    temperature: float
    texts: Sequence[Text]
    prior: Prior


@drawing
def plot_reliability(rows: Sequence[Reliability], out: Path) -> None:
    """A row of panels per temperature: left observed against promised chances of all candidates, with
    Wilson's intervals and how many there are; then, by signal, how much oftener they were right than that.

    Raises `UserError` for a file format that is none.
    """
    sheet = Sheet(out, len(rows), 1 + len(SIGNALS), (2.7, 2.4))
    for panels, row in zip(sheet.panels, rows, strict=True):
        promises = _versions(row)
        _diagram(panels[0], {name: by_chance(found) for name, found in promises.items()})
        kind = "greedy" if row.temperature == 0 else f"temperature {row.temperature:g}"
        panels[0].set_title(f"{kind}, {sum(map(len, row.texts))} tokens")
        for axes, (label, signal) in zip(panels[1:], SIGNALS.items(), strict=True):
            _residuals(axes, {name: signal(found) for name, found in promises.items()})
            axes.set_xlabel(label)
        panels[1].set_ylabel("observed - promised")
        for axes in panels[2:]:
            axes.set_title("first candidates")
        panels[1].set_title("all candidates")
    sheet.legend(handles(STYLES))
    sheet.save()


def _versions(row: Reliability) -> dict[str, list[Promise]]:
    """In the order of `STYLES`."""
    confidence = row.prior.confidence
    found = (
        fixed_promises(row.texts, replace(confidence, sharpness=1.0)),
        fixed_promises(row.texts, confidence),
        learnt_promises(row.texts, row.prior),
    )
    return dict(zip(STYLES, found, strict=True))


def _diagram(axes: Any, versions: Mapping[str, list[Bin]]) -> None:
    axes.plot([LEAST, 1 - LEAST], [LEAST, 1 - LEAST], color="black", linewidth=0.8)
    for name, bins in versions.items():
        _points(axes, STYLES[name], [_inside(each.promised) for each in bins], bins, is_shifted=False)
    for each in versions["learnt on the way"]:
        place = (_inside(each.promised), LEAST)
        axes.annotate(str(each.count), place, rotation=90, fontsize=6, ha="center", va="bottom", color="grey")
    axes.set(xscale="logit", yscale="logit", xlim=(LEAST, 1 - LEAST), ylim=(LEAST, 1 - LEAST))
    ticks = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.set(xlabel="promised chance", ylabel="observed (grey: candidates)")
    axes.grid(**GRID)


def _residuals(axes: Any, versions: Mapping[str, list[Bin]]) -> None:
    axes.axhline(0.0, color="black", linewidth=0.8)
    for name, bins in versions.items():
        _points(axes, STYLES[name], [each.at for each in bins], bins, is_shifted=True)
    axes.set_ylim(-0.15, 0.45)
    axes.grid(**GRID)


def _points(axes: Any, style: Style, x: Sequence[float], bins: Sequence[Bin], is_shifted: bool) -> None:
    """`is_shifted`: by what was promised."""
    shifts = [each.promised if is_shifted else 0.0 for each in bins]
    place = (lambda value: value) if is_shifted else _inside
    middles = [place(each.observed - shift) for each, shift in zip(bins, shifts, strict=True)]
    lows = [middle - place(e.low - shift) for e, shift, middle in zip(bins, shifts, middles, strict=True)]
    highs = [place(e.high - shift) - middle for e, shift, middle in zip(bins, shifts, middles, strict=True)]
    axes.errorbar(
        x,
        middles,
        yerr=[[max(0.0, each) for each in lows], [max(0.0, each) for each in highs]],
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=3.5,
        linewidth=1.0,
        capsize=1.5,
    )


def _inside(chance: float) -> float:
    return min(max(chance, LEAST), 1.0 - LEAST)
