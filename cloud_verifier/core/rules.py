"""Decide the rows of a step by an acceptance rule, found by name (docs/schemes.md).

An engine makes every choice by the coupled rule and then, for the rare items with an `ask`, calls `decide`
with a function that gives a row's probabilities on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import Offer, StepItem
from common.acceptance import AcceptanceRule
from common.chances import Chances, SeededChances
from common.choice import choose_adjusted
from common.errors import LocalError
from common.offers import offered
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
        sampling = SamplingParams(0.0 if self._sampling.greedy else 1.0, seed=self._sampling.seed)
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


GROUP = "forerun.rules"


@cache
def rule_of(rule: AcceptanceRule) -> Rule:
    """Return the implementation of a rule other than the coupled one, which engines implement themselves.

    An installed package offers it as an entry point of the group `forerun.rules`, as `schemes` does. Raise
    `LocalError` if none does.
    """
    entry = offered(GROUP).get(rule.title)
    if entry is None:
        raise LocalError(f"no installed package offers the acceptance rule {rule.title}")
    made: Rule = entry.load()
    return made


def decide(
    item: StepItem,
    coupled: NDArray[np.int32],
    law: Callable[[int], FloatArray],
    chances: Chances | None = None,
    hidden: Callable[[int], FloatArray] | None = None,
) -> NDArray[np.int32]:
    """Return the choices [O] of an item with an `ask`. Raises `LocalError` if the item has no `ask`.

    `coupled` [O] are the coupled rule's choices; `law` gives an output row's probabilities float64 [V]. Rows
    off the committed path keep the coupled choice. The same drafts always give the same choices. `chances`
    come from the session's seed unless a test passes its own. `hidden` gives an output row's last hidden
    state [H], for a judge that reads them.
    """
    rows = RuleRows(item, coupled, law, hidden)
    choices = coupled.copy()
    rule = rule_of(rows.acceptance.rule)
    for row, token in rule(rows, chances or SeededChances(item.sampling.seed)).items():
        choices[row] = token
    return choices
