"""The distribution that drafts are drawn from, small enough to travel, and the drawing itself.

Rejection sampling is exact only for drafts that were drawn from the very distribution that the verifier
reckons with. So the draft model's distribution is cut to its best tokens and rounded to whole counts first,
and drawn from only then (K-SQS; the lattice is what travels). What cutting and rounding cost is acceptance,
never exactness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.chances import DRAW, Chances
from common.errors import LocalError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

TOTAL = 256
"""What the counts of a draft sum to: a byte holds a count, and a token of less than 1/512 is as good as never
drawn. Rounding costs at most 1/512 of acceptance a token, and about half of that."""

MAX_TOKENS = 64
"""Of a draft. The demo pair, which has long tails, fills 38 of them at temperature 0.8 and 48 at 1."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Chances counts / `TOTAL` of some tokens; all others have none. `check` says what must hold."""

    tokens: tuple[int, ...]  # increasing
    counts: tuple[int, ...]  # one a token, above 0

    def problem(self) -> str | None:
        """What is wrong with it, in words; None if nothing is."""
        if len(self.tokens) != len(self.counts):
            return f"has {len(self.tokens)} tokens and {len(self.counts)} counts"
        if not 1 <= len(self.tokens) <= MAX_TOKENS:
            return f"has {len(self.tokens)} tokens; there must be 1 to {MAX_TOKENS}"
        if any(one >= other for one, other in zip(self.tokens, self.tokens[1:], strict=False)):
            return "has tokens that do not increase"
        if min(self.counts) < 1 or sum(self.counts) != TOTAL:
            return f"has counts from {min(self.counts)} that sum to {sum(self.counts)}, not to {TOTAL}"
        return None

    def after(self, taken: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """The tokens [n] that are left when `taken` are drawn, and their chances [n], which sum to 1.

        Both empty if none are left.
        """
        left = [place for place, token in enumerate(self.tokens) if token not in taken]
        counts = np.array([self.counts[place] for place in left], np.float64)
        tokens = np.array([self.tokens[place] for place in left], np.int64)
        return tokens, counts / counts.sum() if left else counts


def quantised(tokens: Sequence[int], scores: Sequence[float]) -> Draft:
    """The softmax of `scores` (nats, finite) over `tokens` (distinct, at most `MAX_TOKENS`), as counts.

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


def draw(draft: Draft, node: int, most: int, chances: Chances) -> tuple[int, ...]:
    """At most `most` children of the node with id `node`, in the order drawn, none of them twice.

    Each is drawn from what the ones before it have left over: a second child that were the first again would
    be no child.
    """
    drawn = list[int]()
    while len(drawn) < most:
        tokens, weights = draft.after(drawn)
        if not len(tokens):
            break
        drawn.append(int(tokens[chances.pick((DRAW, node, len(drawn)), weights)]))
    return tuple(drawn)
