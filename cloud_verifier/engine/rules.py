"""The engine's part in acceptance rules: the asked-for rows' probabilities, on the host.

Rows are brought over an item at a time and turned into probabilities by `common.choice` as they are asked
for. That is some milliseconds a row for the largest vocabularies, and only sessions with such a rule pay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.rules import decide
from cloud_verifier.core.target import FloatArray, IntArray, StepItem, StepPlan, StepResult
from cloud_verifier.engine.choice import ChoiceRow, row_changes
from common.choice import adjust, process_adjusted


def has_rules(plan: StepPlan) -> bool:
    """Whether any item's choices are not the coupled rule's."""
    return any(item.ask is not None for item in plan.items)


def decide_by_rules(
    plan: StepPlan, logits: Tensor, rows: Sequence[ChoiceRow], coupled: StepResult
) -> StepResult:
    """The step's result with the choices of asking items decided by their rules, from logits float32 [O, V].

    A margin is how near a choice was to another one under the noise. Where chance decides there is none: inf.
    """
    choices, margins, end = list[IntArray](), list[FloatArray](), 0
    for item, own, margin in zip(plan.items, coupled.choices, coupled.margins, strict=True):
        start, end = end, end + len(own)
        if item.ask is None:
            choices.append(own)
            margins.append(margin)
        else:
            choices.append(_decide(item, logits[start:end], rows[start:end], own))
            margins.append(np.full_like(margin, np.inf))
    return StepResult(tuple(choices), tuple(margins))


def _decide(item: StepItem, logits: Tensor, rows: Sequence[ChoiceRow], coupled: IntArray) -> IntArray:
    on_host: NDArray[np.float32] = logits.detach().cpu().numpy()
    return decide(item, coupled, lambda row: probabilities(on_host[row], rows[row]))


def probabilities(logits: NDArray[np.float32], row: ChoiceRow) -> NDArray[np.float64]:
    """float64 [V]: the law that the coupled rule's choice has, from one row's logits float32 [V]."""
    (changes,) = row_changes([row], len(logits))
    weights = np.exp(process_adjusted(adjust(logits, changes, row.allowed), row.params))
    law: NDArray[np.float64] = weights / weights.sum()
    return law
