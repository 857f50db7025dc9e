"""Quantiles of the Beta distribution, tabled: a draft's confidence is looked up millions of times."""

from __future__ import annotations

import math
from functools import lru_cache

NUM_QUANTILES = 1024
"""Midpoints of equal shares of probability. The mean over them is the distribution's to 1e-4."""

TINY = 1e-300
MAX_TERMS = 300


@lru_cache(maxsize=64)
def beta_quantiles(a: float, b: float) -> tuple[float, ...]:
    """`NUM_QUANTILES` increasing values of Beta(a, b), each the median of an equal share. `a`, `b` > 0."""
    return tuple(_quantile((share + 0.5) / NUM_QUANTILES, a, b) for share in range(NUM_QUANTILES))


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # there the fraction converges slowly; its mirror image does not
        return 1.0 - beta_cdf(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), evaluated forward."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _nonzero(1.0 + term * d)
            c = _nonzero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-13:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def _quantile(share: float, a: float, b: float) -> float:
    """By bisection: 50 halvings leave 1e-15."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        if beta_cdf(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
