"""A line through measured step times: what worlds call a step's time and the time of each further row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from common.errors import LocalError


class Line(NamedTuple):
    """fixed + per_row * (rows - 1), seconds."""

    fixed: float
    per_row: float


def fit_line(groups: Iterable[tuple[int, int, float]]) -> Line:
    """Least squares over steps in groups of (rows, how many, seconds of all of them together).

    More rows never take less time: a line that falls becomes flat. Raises `LocalError` for no steps.
    """
    found = [group for group in groups if group[1] > 0]
    count = sum(number for _, number, _ in found)
    if not count:
        raise LocalError("there are no step times to fit")
    mean_rows = sum(rows * number for rows, number, _ in found) / count
    mean_time = sum(seconds for *_, seconds in found) / count
    squares = sum(number * (rows - mean_rows) ** 2 for rows, number, _ in found)
    products = sum((rows - mean_rows) * (seconds - number * mean_time) for rows, number, seconds in found)
    per_row = max(0.0, products / squares) if squares else 0.0
    fixed = mean_time - per_row * (mean_rows - 1.0)
    return Line(fixed, per_row) if fixed > 0 else Line(mean_time, 0.0)
