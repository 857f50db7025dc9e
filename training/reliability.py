"""Tests whether promises are kept: promised and observed chances, overall and by the draft's signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from common.calibration import Calibration, Confidence, Prior, promised
from simulator.canvas import Sheet, Style, drawing, handles
from simulator.plots import GRID
from training.fitting import Observation, Text

EDGES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 0.99, 0.997, 1.0)
"""Of bins of promised chance: even steps in log odds, roughly."""

QUANTILES = 5
MOST_DEPTH = 8  # of a path below the tip; deeper ones are one bin
Z = 1.96  # standard deviations on either side: 95 of 100 intervals hold the truth


@dataclass(frozen=True, slots=True)
class Promise:
    """Holds one candidate at one position of a text, and the draft's signals there."""

    chance: float
    is_right: bool
    rank: int  # from 1
    margin: float  # nats of score between the first candidate and the second; infinite if it is alone
    entropy: float  # nats, of the plain softmax over the candidates
    depth: int  # 1 + how many first candidates before it were right one after the other


@dataclass(frozen=True, slots=True)
class Bin:
    """Groups similar promises. `low` and `high` are Wilson's interval of the observed share."""

    promised: float
    observed: float
    low: float
    high: float
    count: int
    at: float  # the mean of what it is a bin of


def fixed_promises(texts: Iterable[Text], confidence: Confidence) -> list[Promise]:
    """Collect the promises of a confidence that learns nothing."""
    return [each for text in texts for each in _promises(text, lambda _: confidence)]


def learnt_promises(texts: Iterable[Text], prior: Prior) -> list[Promise]:
    """Collect the promises of texts that learn on their way from `prior`, each before it learns."""
    found = list[Promise]()
    for text in texts:
        calibration = Calibration(prior)

        def believed(seen: Observation, calibration: Calibration = calibration) -> Confidence:
            confidence = calibration.confidence
            calibration.observe(seen.scores, seen.chosen)
            return confidence

        found += _promises(text, believed)
    return found


def _promises(text: Text, believed: Callable[[Observation], Confidence]) -> list[Promise]:
    found, depth = list[Promise](), 1
    for seen in text:
        margin, entropy = _margin(seen.scores), _entropy(seen.scores)
        chances = map(math.exp, promised(believed(seen), seen.scores))
        found += [
            Promise(chance, seen.chosen == place, place + 1, margin, entropy, depth)
            for place, chance in enumerate(chances)
        ]
        depth = depth + 1 if seen.chosen == 0 else 1
    return found


def _margin(scores: Sequence[float]) -> float:
    return scores[0] - scores[1] if len(scores) > 1 else math.inf


def _entropy(scores: Sequence[float]) -> float:
    weights = [math.exp(score - scores[0]) for score in scores]
    total = sum(weights)
    return math.log(total) - sum(
        weight / total * (score - scores[0]) for weight, score in zip(weights, scores, strict=True)
    )


# Bins -----------------------------------------------------------------------------------------------------


def by_chance(promises: Sequence[Promise]) -> list[Bin]:
    """Return the bins between `EDGES`; empty ones are left out."""
    ordered = sorted(promises, key=lambda each: each.chance)
    return [
        _bin(inside, lambda each: each.chance)
        for low, high in pairwise(EDGES)
        if (inside := [each for each in ordered if low < each.chance <= high])
    ]


@dataclass(frozen=True, slots=True)
class Signal:
    """Sorts candidates into a bin per value, or into fifths of equal size."""

    label: str
    value: Callable[[Promise], float]
    is_of_firsts: bool = True
    in_fifths: bool = False


RANK = Signal("rank of the candidate", lambda each: each.rank, is_of_firsts=False)
MARGIN = Signal("lead over the second, nats", lambda each: each.margin, in_fifths=True)
ENTROPY = Signal("entropy of the candidates, nats", lambda each: each.entropy, in_fifths=True)
DEPTH = Signal("depth below the tip (8: or more)", lambda each: min(each.depth, MOST_DEPTH))
SIGNALS = (RANK, MARGIN, ENTROPY, DEPTH)


def by_signal(promises: Sequence[Promise], signal: Signal) -> list[Bin]:
    """Group the promises that have a finite value of the signal into bins."""
    found = [each for each in promises if each.rank == 1 or not signal.is_of_firsts]
    ordered = sorted((each for each in found if signal.value(each) < math.inf), key=signal.value)
    groups = [list(group) for _, group in groupby(ordered, key=signal.value)]
    if signal.in_fifths:
        ends = [len(ordered) * place // QUANTILES for place in range(QUANTILES + 1)]
        groups = [ordered[low:high] for low, high in pairwise(ends) if low < high]
    return [_bin(group, signal.value) for group in groups]


def _bin(inside: Sequence[Promise], value: Callable[[Promise], float]) -> Bin:
    count, right = len(inside), sum(each.is_right for each in inside)
    low, high = wilson(right, count)
    chance, at = (math.fsum(column) / count for column in ((e.chance for e in inside), map(value, inside)))
    return Bin(chance, right / count, low, high, count, at)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the interval of a share seen as `right` of `count` (Wilson 1927, JASA 22)."""
    share, squared = right / count, Z * Z / count
    middle = (share + squared / 2) / (1 + squared)
    half = Z / (1 + squared) * math.sqrt(share * (1 - share) / count + squared / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


# The picture of kept and broken promises. matplotlib is loaded only when something is drawn.

STYLES = {
    "softmax of the scores": Style("#e06000", "s", ":"),
    "the prior, never learning": Style("#0050e0", "^", "--"),
    "learnt on the way": Style("#00a070", "o", "-"),
}
LEAST = 1e-3  # of a chance that is drawn; rarer ones stand at the edge


@dataclass(frozen=True, slots=True)
class Reliability:
    """Holds one row of the picture: texts of one temperature that `prior` was not fitted on."""

    temperature: float
    texts: Sequence[Text]
    prior: Prior


@drawing
def plot_reliability(rows: Sequence[Reliability], out: Path) -> None:
    """Plot a row of panels per temperature: left observed against promised chances of all candidates, with
    Wilson's intervals and counts; then, by signal, how much oftener candidates were right than promised.

    Raises `UserError` for an unknown file format.
    """
    sheet = Sheet(out, len(rows), 1 + len(SIGNALS), (2.7, 2.4))
    for panels, row in zip(sheet.panels, rows, strict=True):
        promises = _versions(row)
        _diagram(panels[0], {name: by_chance(found) for name, found in promises.items()})
        kind = "greedy" if row.temperature == 0 else f"temperature {row.temperature:g}"
        panels[0].set_title(f"{kind}, {sum(map(len, row.texts))} tokens")
        for axes, signal in zip(panels[1:], SIGNALS, strict=True):
            _residuals(axes, {name: by_signal(found, signal) for name, found in promises.items()})
            axes.set_xlabel(signal.label)
        panels[1].set_ylabel("observed - promised")
        for axes in panels[2:]:
            axes.set_title("first candidates")
        panels[1].set_title("all candidates")
    sheet.legend(handles(STYLES))
    sheet.save()


def _versions(row: Reliability) -> dict[str, list[Promise]]:
    """Return the versions in the order of `STYLES`."""
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
    """Draw the bins as points; `is_shifted` subtracts the promised chance."""
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
