"""Find the acceptance rules other than the coupled one, which installed packages offer (docs/schemes.md).

An engine makes every choice by the coupled rule and then, for the rare items with an `ask`, calls `decide`
with a function that gives a row's probabilities on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import StepItem
from common.acceptance import AcceptanceRule
from common.chances import Chances
from common.errors import LocalError
from common.offers import offer

FloatArray = NDArray[np.float64]
RULES, PARTS = "forerun.rules", "forerun.rule_parts"
"""Groups of entry points: rules by name, and what all of them need."""


@cache
def rule_of(rule: AcceptanceRule) -> Any:
    """Return the implementation of a rule. Raise `LocalError` if no installed package offers it."""
    return _load(RULES, rule.title)


@cache
def part_of(name: str) -> Any:
    """Return what all rules need under this name. Raise `LocalError` if no installed package offers it."""
    return _load(PARTS, name)


def _load(group: str, name: str) -> Any:
    return offer(group, name, LocalError(f"no installed package offers the acceptance rule {name}"))


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
    choices: NDArray[np.int32] = part_of("decide")(item, coupled, law, chances, hidden)
    return choices
