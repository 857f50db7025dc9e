"""Decide row by row, and compute the laws that rules draw from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common.chances import SAMPLE, Chances
from schemes.rules.rule_rows import FloatArray, RuleRows

TokenArray = NDArray[np.int64]


def row_by_row(rows: RuleRows, choose: Callable[[int], int]) -> dict[int, int]:
    """Walk down from the tip, and decide each row by itself."""
    choices, row = dict[int, int](), 0
    while True:
        choices[row] = choose(row)
        below = rows.child(row, choices[row])
        if below is None:
            return choices
        row = below


def residual(law: FloatArray, tokens: TokenArray, chances: FloatArray) -> FloatArray:
    """Return norm(max(law - q, 0)) [V], where q gives `tokens` [n] these `chances` [n] and no others.

    `law` [V] may sum to less than 1. If rounding leaves nothing over, return `law`.
    """
    left = left_over(law, tokens, chances)
    total = left.sum()
    return left / total if total > 0.0 else law


def left_over(law: FloatArray, tokens: TokenArray, chances: FloatArray) -> FloatArray:
    left = law.copy()
    left[tokens] = np.maximum(left[tokens] - chances, 0.0)
    return left


def sample(rows: RuleRows, row: int, weights: FloatArray, chances: Chances) -> int:
    """Draw what follows the row from `weights` [V]."""
    return chances.pick((SAMPLE, rows.position(row)), weights)
