"""Are two samples of one law? The test of Kolmogorov and Smirnov."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

TERMS = 100
"""Of the series; from a lambda of 0.1 on the hundredth is below 1e-80."""


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference of the two empirical distribution functions, in [0, 1]."""
    one, other = np.sort(first), np.sort(second)
    at = np.concatenate((one, other))
    below_one = np.searchsorted(one, at, side="right") / len(one)
    below_other = np.searchsorted(other, at, side="right") / len(other)
    return float(np.abs(below_one - below_other).max())


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """The chance of a distance that is at least as large where both samples are of one law, by the asymptotic
    series with Stephens's correction for finite samples (1970)."""
    size = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    return tail((size + 0.12 + 0.11 / size) * distance(first, second))


def tail(scaled: float) -> float:
    """The chance that Kolmogorov's variable is larger: 2 sum (-1)^(j-1) exp(-2 j^2 x^2)."""
    if scaled < 0.1:  # where the series converges slowly and its value is 1 to sixteen digits
        return 1.0
    terms = (math.exp(-2.0 * j * j * scaled * scaled) * (1 if j % 2 else -1) for j in range(1, TERMS + 1))
    return min(1.0, max(0.0, 2.0 * sum(terms)))
