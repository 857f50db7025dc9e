"""Makes the distribution that drafts are drawn from, and draws them.

Rejection sampling is exact only for drafts that were drawn from the distribution that the verifier uses. So
the draft model's distribution is first cut to its best tokens and rounded to whole counts, and drafts are
drawn from the result (K-SQS), which is sent. Cutting and rounding cost acceptance, never exactness.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.acceptance import TOTAL, Draft
from common.chances import DRAW, Chances
from common.errors import LocalError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def quantised(tokens: Sequence[int], scores: Sequence[float]) -> Draft:
    """Round the softmax of `scores` (nats, finite) over distinct `tokens`, at most `MAX_TOKENS`, to counts.

    By largest remainder, the likelier token first among equals; tokens whose count is 0 are left out.
    Raises `LocalError` if there are none.
    """
    if not tokens or len(tokens) != len(scores):
        raise LocalError(f"a draft is to be made of {len(tokens)} tokens and {len(scores)} scores")
    weights = np.exp(np.asarray(scores, np.float64) - max(scores))
    shares = weights * (TOTAL / weights.sum())
    counts = np.floor(shares).astype(np.int64)
    order = np.lexsort((-weights, counts - shares))  # the largest remainder first
    counts[order[: TOTAL - int(counts.sum())]] += 1
    kept = sorted((token, count) for token, count in zip(tokens, counts.tolist(), strict=True) if count)
    return Draft(tuple(token for token, _ in kept), tuple(count for _, count in kept))


def remaining(draft: Draft, taken: Sequence[int] = ()) -> tuple[IntArray, FloatArray]:
    """Return the tokens [n] that are left when `taken` are drawn, and their chances [n], which sum to 1.

    Both empty if none are left.
    """
    left = [place for place, token in enumerate(draft.tokens) if token not in taken]
    counts = np.array([draft.counts[place] for place in left], np.float64)
    tokens = np.array([draft.tokens[place] for place in left], np.int64)
    return tokens, counts / counts.sum() if left else counts


def draw(draft: Draft, node: int, most: int, chances: Chances, replaces: bool = False) -> tuple[int, ...]:
    """Draw children of the node with id `node`, in order: at most `most` distinct ones, without replacement.

    If the rule `replaces`: exactly `most`, with replacement.
    """
    drawn = list[int]()
    while len(drawn) < most:
        tokens, weights = remaining(draft, () if replaces else drawn)
        if not len(tokens):
            break
        drawn.append(int(tokens[chances.pick((DRAW, node, len(drawn)), weights)]))
    return tuple(drawn)
