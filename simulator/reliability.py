"""Whether promises are kept: promised and observed chances, overall and by what the draft showed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edge_client.core.calibration import Calibration, promised
from edge_client.core.confidence import Confidence, Prior
from simulator.fitting import Observation, Text

EDGES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 0.99, 0.997, 1.0)
"""Of bins of promised chance: even steps in log odds, roughly."""

QUANTILES = 5
MOST_DEPTH = 8  # of a path below the tip; deeper ones are one bin
Z = 1.96  # standard deviations on either side: 95 of 100 intervals hold the truth


@dataclass(frozen=True, slots=True)
class Promise:
    """One candidate at one position of a text, and what the draft showed there."""

    chance: float
    is_right: bool
    rank: int  # from 1
    margin: float  # nats of score between the first candidate and the second; infinite if it is alone
    entropy: float  # nats, of the plain softmax over the candidates
    depth: int  # 1 + how many first candidates before it were right one after the other


@dataclass(frozen=True, slots=True)
class Bin:
    """Promises of about the same kind. `low` and `high` are Wilson's interval of the observed share."""

    promised: float
    observed: float
    low: float
    high: float
    count: int
    at: float  # the mean of what it is a bin of


def fixed_promises(texts: Iterable[Text], confidence: Confidence) -> list[Promise]:
    """With a confidence that learns nothing."""
    return [each for text in texts for each in _promises(text, lambda _: confidence)]


def learnt_promises(texts: Iterable[Text], prior: Prior) -> list[Promise]:
    """Every text learns on its way, from `prior` on, and promises before it learns."""
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
    """Bins between `EDGES`; empty ones are left out."""
    ordered = sorted(promises, key=lambda each: each.chance)
    return [
        _bin(inside, lambda each: each.chance)
        for low, high in pairwise(EDGES)
        if (inside := [each for each in ordered if low < each.chance <= high])
    ]


def by_rank(promises: Sequence[Promise]) -> list[Bin]:
    """A bin per rank."""
    return _by_value(promises, lambda each: each.rank)


def by_margin(promises: Sequence[Promise]) -> list[Bin]:
    """First candidates, in fifths of equal size."""
    return _by_quantile([each for each in _firsts(promises) if each.margin < math.inf], lambda p: p.margin)


def by_entropy(promises: Sequence[Promise]) -> list[Bin]:
    """First candidates, in fifths of equal size."""
    return _by_quantile(_firsts(promises), lambda each: each.entropy)


def by_depth(promises: Sequence[Promise]) -> list[Bin]:
    """First candidates, by how deep they stand on a path that was right so far."""
    return _by_value(_firsts(promises), lambda each: min(each.depth, MOST_DEPTH))


def _firsts(promises: Sequence[Promise]) -> list[Promise]:
    return [each for each in promises if each.rank == 1]


def _by_value(promises: Sequence[Promise], value: Callable[[Promise], int]) -> list[Bin]:
    groups: dict[int, list[Promise]] = {}
    for each in promises:
        groups.setdefault(value(each), []).append(each)
    return [_bin(groups[key], value) for key in sorted(groups)]


def _by_quantile(promises: Sequence[Promise], value: Callable[[Promise], float]) -> list[Bin]:
    ordered = sorted(promises, key=value)
    ends = [len(ordered) * place // QUANTILES for place in range(QUANTILES + 1)]
    return [_bin(ordered[low:high], value) for low, high in pairwise(ends) if low < high]


def _bin(inside: Sequence[Promise], value: Callable[[Promise], float]) -> Bin:
    count, right = len(inside), sum(each.is_right for each in inside)
    low, high = wilson(right, count)
    chance, at = (math.fsum(column) / count for column in ((e.chance for e in inside), map(value, inside)))
    return Bin(chance, right / count, low, high, count, at)


def wilson(right: int, count: int) -> tuple[float, float]:
    """The interval of a share of which `right` of `count` were seen (Wilson 1927, JASA 22)."""
    share, squared = right / count, Z * Z / count
    middle = (share + squared / 2) / (1 + squared)
    half = Z / (1 + squared) * math.sqrt(share * (1 - share) / count + squared / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)
