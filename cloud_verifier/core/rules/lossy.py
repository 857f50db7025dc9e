"""Rules that let pass what the target might have said: `typical`, `topk-gap` and `bild`. All of them lossy.

Each says which tokens are good enough after a node. The target's own choice, made under the shared noise as
by the coupled rule, is taken if a child holds it, or if no child is good enough; else the eldest child that
is. So drafts are made, ranked and sent as for the coupled rule, no distribution travels, and as little is
changed as gives the same accepted length. What is written then depends on which drafts came in time: another
network may give another text.

The probabilities are those of the sampling parameters; at temperature 0, where their authors use `topk-gap`
and `bild`, those of the logits as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cloud_verifier.core.rules.base import FloatArray, Rows
from common.acceptance import Acceptance
from common.chances import Chances

GoodEnough = Callable[[FloatArray, int], bool]
"""Whether a token may follow, by the target's probabilities [V]."""


class LossyMatch:
    """Takes a child that is good enough where none is the target's choice."""

    def __init__(self, good_enough: GoodEnough) -> None:
        self._good_enough = good_enough

    def decide(self, rows: Rows, chances: Chances) -> dict[int, int]:
        choices, row = dict[int, int](), 0
        while True:
            choices[row] = self._choose(rows, row)
            below = rows.child(row, choices[row])
            if below is None:
                return choices
            row = below

    def _choose(self, rows: Rows, row: int) -> int:
        own, tokens = rows.coupled(row), rows.offer(row).tokens
        if not tokens or own in tokens:
            return own
        law = rows.law(row)
        return next((token for token in tokens if self._good_enough(law, token)), own)


def typical_rule(acceptance: Acceptance) -> LossyMatch:
    """Good enough: a chance above min(epsilon, delta exp(-entropy)) (Medusa, Cai et al. 2024).

    Lossy: where the draft's favourites are typical they push out all other tokens, so the text is less varied
    than the target's.
    """

    def good_enough(law: FloatArray, token: int) -> bool:
        enough = min(acceptance.epsilon, acceptance.delta * math.exp(-entropy(law)))
        return float(law[token]) > enough

    return LossyMatch(good_enough)


def topk_gap_rule(acceptance: Acceptance) -> LossyMatch:
    """Good enough: among the `top` likeliest and at most `gap` nats behind the best (Xia et al. 2023).

    Lossy: greedy text may have the draft's token wherever the target hardly minds.
    """

    def good_enough(law: FloatArray, token: int) -> bool:
        likely, best = float(law[token]), float(law.max())
        if likely <= 0.0 or math.log(best / likely) > acceptance.gap:
            return False
        return int(np.count_nonzero(law > likely)) < acceptance.top

    return LossyMatch(good_enough)


def bild_rule(acceptance: Acceptance) -> LossyMatch:
    """Good enough: a surprise -log p(x) of at most `rollback` nats; else the text is rolled back to before
    the token (BiLD, Kim et al. 2023). BiLD's other half, a draft that stops where it is unsure, is up to the
    edge's growth policy.

    Lossy: at the usual 5 nats nearly all that the draft says is let pass.
    """

    def good_enough(law: FloatArray, token: int) -> bool:
        return 0.0 < float(law[token]) >= math.exp(-acceptance.rollback)

    return LossyMatch(good_enough)


def entropy(law: FloatArray) -> float:
    """In nats."""
    kept = law[law > 0.0]
    return float(-(kept * np.log(kept)).sum())
