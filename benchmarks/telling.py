"""How much traces of frames tell: can somebody who has seen texts of several kinds say of which kind one is?

The nearest neighbour among all other traces answers, after every feature was brought to one scale; each trace
is asked for once (leave one out). Of several that are as near it is one at random: where no feature differs
that is chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.tap import Seen, Talk

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def of_sizes(talk: Talk) -> list[float]:
    """What the sizes say, whatever their number: spread and order, of either direction, behind `Open`."""
    return [each for seen in (talk.up[1:], talk.down) for each in _spread([size for _, size in seen])]


def of_times(talk: Talk) -> list[float]:
    """What the times say: how frames follow each other, whatever their number."""
    return [each for seen in (talk.up[1:], talk.down) for each in _spread(gaps(seen))]


def of_numbers(talk: Talk) -> list[float]:
    """How many frames there are: under a cadence, how long the session lasted."""
    return [float(len(talk.up)), float(len(talk.down))]


def gaps(seen: Sequence[Seen]) -> list[float]:
    """Seconds from each frame to the next."""
    return [later - sooner for (sooner, _), (later, _) in pairwise(seen)]


def accuracy(traces: Sequence[tuple[str, Sequence[float]]]) -> float:
    """The share of traces (kind, features) whose kind their nearest neighbour has, as expected where several
    are as near."""
    features = np.array([found for _, found in traces], dtype=np.float64)
    scale = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    right = 0.0
    for index, (kind, _) in enumerate(traces):
        distances = np.square(scaled - scaled[index]).sum(axis=1)
        distances[index] = np.inf
        near: list[int] = np.flatnonzero(distances <= distances.min() + 1e-12).tolist()
        right += sum(1 for each in near if traces[each][0] == kind) / len(near)
    return right / len(traces)


def _spread(values: Sequence[float]) -> list[float]:
    """Mean, deviation, quantiles, and how alike neighbours are."""
    if not values:
        return [0.0] * (len(QUANTILES) + 3)
    found: NDArray[np.float64] = np.array(values, dtype=np.float64)
    centred = found - found.mean()
    alike = float((centred[1:] * centred[:-1]).sum())
    return [float(found.mean()), float(found.std()), alike, *map(float, np.quantile(found, QUANTILES))]
