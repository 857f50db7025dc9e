"""An example of a rule of acceptance: a draft's token is text if it is likely enough for the target.

As a part of a package it is an entry point of the group `forerun.rules`, under a name of `common.acceptance`.
The rule is lossy: what it writes is no draw from the target's law.
"""

from __future__ import annotations

from common.chances import Chances
from schemes.rules.row_laws import row_by_row
from schemes.rules.rule_rows import RuleRows

ENOUGH = 0.2
"""Least chance of an accepted token under the target, after the sampling parameters."""


def likely(rows: RuleRows, chances: Chances) -> dict[int, int]:
    """Choose at each node the eldest child that is likely enough, else the target's own choice.

    Returns a token by row, along the committed path; the other rows keep the target's choice.
    """

    def choose(row: int) -> int:
        tokens, own = rows.offer(row).tokens, rows.coupled(row)
        if not tokens or own in tokens:
            return own
        law = rows.law(row)  # float64 [V]; asked for only where it decides
        return next((token for token in tokens if law[token] >= ENOUGH), own)

    return row_by_row(rows, choose)
