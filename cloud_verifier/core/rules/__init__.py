"""Acceptance rules by name, and how an engine uses them (docs/acceptance.md).

An engine makes every choice by the coupled rule and then, for the rare items with an `ask`, calls `decide`
with a function that gives a row's probabilities on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.rules.base import FloatArray, Rows, Rule
from cloud_verifier.core.rules.block import block_rule
from cloud_verifier.core.rules.lossy import bild_rule, topk_gap_rule, typical_rule
from cloud_verifier.core.rules.rejection import lenience_rule, rejection_rule, specinfer_rule
from cloud_verifier.core.target import StepItem
from common.acceptance import Acceptance, AcceptanceRule
from common.chances import Chances, SeededChances

RULES: dict[AcceptanceRule, Callable[[Acceptance], Rule]] = {
    AcceptanceRule.REJECTION: rejection_rule,
    AcceptanceRule.BLOCK: block_rule,
    AcceptanceRule.SPECINFER: specinfer_rule,
    AcceptanceRule.LENIENCE: lenience_rule,
    AcceptanceRule.TYPICAL: typical_rule,
    AcceptanceRule.TOPK_GAP: topk_gap_rule,
    AcceptanceRule.BILD: bild_rule,
}
"""All but the coupled rule, which engines carry out themselves."""


def decide(
    item: StepItem,
    coupled: NDArray[np.int32],
    law: Callable[[int], FloatArray],
    chances: Chances | None = None,
) -> NDArray[np.int32]:
    """The choices [O] of an item with an `ask`, from those of the coupled rule [O] and from `law`, which
    gives an output row's probabilities float64 [V]. Raises `LocalError` if the item has no `ask`.

    Rows off the path that will be committed keep the coupled rule's choice. Asking again with the same drafts
    gives the same choices. `chances` are those of the session's seed, unless a test brings its own.
    """
    rows = Rows(item, coupled, law)
    rule = RULES[rows.ask.acceptance.rule](rows.ask.acceptance)
    choices = coupled.copy()
    for row, token in rule.decide(rows, chances or SeededChances(item.sampling.seed)).items():
        choices[row] = token
    return choices


__all__ = ["RULES", "Rows", "Rule", "decide"]
