"""The lossy rules `typical`, `topk-gap` and `bild` accept tokens that are plausible for the target.

Each defines which tokens are good enough after a node. Where no child is good enough, the target's own
choice is taken, made under the shared noise as by the coupled rule. So drafts are made, ranked and sent as
for the coupled rule, without distributions. The text then depends on which drafts came in time: another
network may give another text.

`topk-gap` and `bild` were published for chains. In a tree they first take the own choice if a child holds
it, then the eldest good child. `typical` was published for trees, and takes the longest path of good
tokens, as Medusa does.

The probabilities are those after the sampling parameters. At temperature 0, where the authors use
`topk-gap` and `bild`, they are those of the raw logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from common.acceptance import Acceptance
from common.chances import Chances
from schemes.rules.row_laws import row_by_row
from schemes.rules.rule_rows import FloatArray, RuleRows

GoodEnough = Callable[[FloatArray, int, Acceptance], bool]
"""Returns whether a token may follow, by the target's probabilities [V]."""


def _lossy(good_enough: GoodEnough, rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        own, tokens = rows.coupled(row), rows.offer(row).tokens
        if not tokens or own in tokens:
            return own
        law = rows.law(row)
        return next((token for token in tokens if good_enough(law, token, rows.acceptance)), own)

    return row_by_row(rows, choose)


def typical(rows: RuleRows, chances: Chances) -> dict[int, int]:
    """Accept the longest path of typical tokens, the likeliest among equals (Medusa, Cai et al. 2024).

    The target's own choice follows. If a child that is not typical holds it, the walk goes on below.
    """
    choices = dict[int, int]()
    row: int | None = 0
    while row is not None:
        path = _longest_typical(rows, row)
        choices |= path
        if path:
            last, token = next(reversed(path.items()))
            row = rows.child(last, token)
        if row is not None:
            choices[row] = rows.coupled(row)
            row = rows.child(row, choices[row])
    return choices


def _longest_typical(rows: RuleRows, top: int) -> dict[int, int]:
    """Return the longest path of typical tokens below the row `top`, as choices by row, in order."""
    reached: dict[int, tuple[int, float, dict[int, int]]] = {top: (0, 0.0, {})}
    best, waiting = reached[top], [top]
    while waiting:
        row = waiting.pop()
        length, likelihood, path = reached[row]
        tokens = rows.offer(row).tokens
        law = rows.law(row) if tokens else np.empty(0)
        for token in tokens:
            if not _is_typical(law, token, rows.acceptance):
                continue
            candidate = length + 1, likelihood + math.log(law[token]), {**path, row: token}
            best = max(best, candidate, key=lambda each: each[:2])
            below = rows.child(row, token)
            if below is not None:
                reached[below] = candidate
                waiting.append(below)
    return best[2]


def _is_typical(law: FloatArray, token: int, acceptance: Acceptance) -> bool:
    """Return whether the chance is above min(epsilon, delta exp(-entropy)). The draft's favourites displace
    other typical tokens, so the text is less varied than the target's."""
    kept = law[law > 0.0]
    entropy = float(-(kept * np.log(kept)).sum())  # nats
    return float(law[token]) > min(acceptance.epsilon, acceptance.delta * math.exp(-entropy))


def _is_near_the_top(law: FloatArray, token: int, acceptance: Acceptance) -> bool:
    """Return whether the token is among the `top` likeliest and at most `gap` nats behind the best.

    Source: Xia et al. 2023."""
    likely, best = float(law[token]), float(law.max())
    if likely <= 0.0 or math.log(best / likely) > acceptance.gap:
        return False
    return int(np.count_nonzero(law > likely)) < acceptance.top


def _is_no_surprise(law: FloatArray, token: int, acceptance: Acceptance) -> bool:
    """Return whether the surprise -log p(x) is at most `rollback` nats; else the text is rolled back (BiLD,
    Kim et al. 2023). Its other half, a draft that stops where it is unsure, is the edge's growth policy
    `bild`. At the usual 5 nats nearly all draft tokens pass."""
    return 0.0 < float(law[token]) >= math.exp(-acceptance.rollback)


topk_gap = partial(_lossy, _is_near_the_top)
bild = partial(_lossy, _is_no_surprise)
