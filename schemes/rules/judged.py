"""The lossy rule `judge` lets pass what a trained judge finds unimportant (AutoJudge, `core.judge`)."""

from __future__ import annotations

from cloud_verifier.core.rules import (
    RuleRows,
    row_by_row,
)
from common.chances import Chances
from common.errors import LocalError


def judged(rows: RuleRows, chances: Chances) -> dict[int, int]:
    judge = rows.judge
    if judge is None:
        raise LocalError("the rule judge has no judge")

    def choose(row: int) -> int:
        own, tokens = rows.coupled(row), rows.offer(row).tokens
        if not tokens or own in tokens:
            return own
        law = rows.law(row)
        passing = (
            token for token in tokens if judge.is_unimportant(law, token, rows.hidden(rows.child(row, token)))
        )
        return next(passing, own)

    return row_by_row(rows, choose)
