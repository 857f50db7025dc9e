"""Decide the rows of a step by an acceptance rule, which gets the rows of one session and returns choices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import Offer, StepItem
from cloud_verifier.core.rules import rule_of
from common.chances import Chances, SeededChances
from common.choice import choose_adjusted
from common.errors import LocalError
from common.sampling import SamplingParams

FloatArray = NDArray[np.float64]


class RuleRows:
    """Holds the output rows of one session in a step. The tip is row 0; a child comes after its parent.

    Args: item, with an `ask`; coupled, the coupled rule's choice of each row; law, which gives a row's
    probabilities float64 [V], the target's own after all sampling parameters. It is called only for rows that
    a decision needs, mostly rows on the committed path; hidden, which gives a row's last hidden state [H].
    """

    def __init__(
        self,
        item: StepItem,
        coupled: NDArray[np.int32],
        law: Callable[[int], FloatArray],
        hidden: Callable[[int], FloatArray] | None = None,
    ) -> None:
        if item.ask is None or len(item.ask.offers) != len(item.outputs):
            raise LocalError("a rule needs one offer for each output row")
        self.acceptance = item.ask.acceptance
        self.judge = item.ask.judge
        self._copies, self._sampling = item.ask.copies, item.sampling
        self.law = law
        self._hidden = hidden
        self._offers = item.ask.offers
        self._coupled = coupled
        self._positions = item.positions[item.outputs]
        row_of = {row: output for output, row in enumerate(item.outputs.tolist())}
        parents = item.parents.tolist()
        self._children = {
            (row_of[parents[row]], int(item.tokens[row])): output
            for row, output in row_of.items()
            if parents[row] in row_of
        }

    @property
    def greedy(self) -> bool:
        """Return whether the temperature is 0."""
        return self._sampling.greedy

    def offer(self, row: int) -> Offer:
        return self._offers[row]

    def hidden(self, row: int | None) -> FloatArray | None:
        """Return a row's last hidden state [H]; None for no row, and if the engine gives none."""
        return None if row is None or self._hidden is None else self._hidden(row)

    def coupled(self, row: int) -> int:
        return int(self._coupled[row])

    def copy(self, row: int) -> int | None:
        """Return the row of this row's second look; None without one."""
        return self._copies.get(row)

    def chosen(self, row: int, logits: FloatArray) -> int:
        """Return the coupled rule's choice from other logits [V], which hold all sampling parameters."""
        sampling = SamplingParams(0.0 if self.greedy else 1.0, seed=self._sampling.seed)
        return choose_adjusted(logits.astype(np.float32), sampling, self.position(row) - 1).token

    def position(self, row: int) -> int:
        """Return the position of the row's chosen token."""
        return int(self._positions[row]) + 1

    def child(self, row: int, token: int) -> int | None:
        """Return the row that evaluates this child; None if the step does not evaluate it."""
        return self._children.get((row, token))


Rule = Callable[[RuleRows, Chances], dict[int, int]]
"""Returns the choice of every row on the path that will be committed from row 0. Other rows' choices have no
effect."""


def decide(
    item: StepItem,
    coupled: NDArray[np.int32],
    law: Callable[[int], FloatArray],
    chances: Chances | None = None,
    hidden: Callable[[int], FloatArray] | None = None,
) -> NDArray[np.int32]:
    """Implement `cloud_verifier.core.rules.decide`."""
    rows = RuleRows(item, coupled, law, hidden)
    choices = coupled.copy()
    rule: Rule = rule_of(rows.acceptance.rule)
    for row, token in rule(rows, chances or SeededChances(item.sampling.seed)).items():
        choices[row] = token
    return choices
