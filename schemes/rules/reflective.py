"""The lossy rule `reflective` decides by the target's law fused with its law at a second look at the draft
(arXiv 2505.18629). The engine evaluates the second look in the same step (`schemes.engines.second_look`).
"""

from __future__ import annotations

import numpy as np

from common.chances import Chances
from schemes.rules.row_laws import row_by_row
from schemes.rules.rule_rows import FloatArray, RuleRows

LEAST = 1e-12
"""Chance of a token that the second look excludes. Without it one such look would be a veto."""


def reflective(rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        copy = rows.copy(row)
        if copy is None:
            return rows.coupled(row)
        return rows.chosen(row, fused(rows.law(row), rows.law(copy), rows.acceptance.fusion))

    return row_by_row(rows, choose)


def fused(law: FloatArray, second: FloatArray, weight: float) -> FloatArray:
    """Return logits float64 [V], (1 - weight) log law + weight log second; -inf where `law` has no chance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logits: FloatArray = (1.0 - weight) * np.log(law) + weight * np.log(np.maximum(second, LEAST))
    logits[law <= 0.0] = -np.inf
    return logits
