"""The lossy rule `judge` lets pass what a trained judge finds unimportant (AutoJudge)."""

from __future__ import annotations

from common.chances import Chances
from common.errors import LocalError
from schemes.rules.row_laws import row_by_row
from schemes.rules.rule_rows import RuleRows
from schemes.rules.trained_judge import Judge


class JudgedRule:
    """The rule, and the judge that it needs."""

    @staticmethod
    def read_judge(text: str) -> Judge:
        """Read a judge's file. Raises `UserError`."""
        return Judge.from_json(text)

    def __call__(self, rows: RuleRows, chances: Chances) -> dict[int, int]:
        judge = rows.judge
        if judge is None:
            raise LocalError("the rule judge has no judge")

        def choose(row: int) -> int:
            own, tokens = rows.coupled(row), rows.offer(row).tokens
            if not tokens or own in tokens:
                return own
            law = rows.law(row)
            passing = (
                token
                for token in tokens
                if judge.is_unimportant(law, token, rows.hidden(rows.child(row, token)))
            )
            return next(passing, own)

        return row_by_row(rows, choose)


judged = JudgedRule()
