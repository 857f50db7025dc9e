"""What the draft knows, and whether it is right: the part of a world that stands for the two models.

A token is named by the rank that the draft gives it at its place: 1 is the draft's best, 2 the runner-up, and
`OUTSIDE` any token beyond the draft's `NUM_CANDIDATES`. What the target writes is then a row of ranks, the
`truth`, and a node is right if its parent is and its token is the truth's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from common.errors import UserError
from simulator.beta import NUM_QUANTILES, beta_quantiles
from simulator.draws import Draws, Stream

NUM_CANDIDATES = 8
OUTSIDE = NUM_CANDIDATES + 1
OUTSIDE_SHARE = 0.15  # of the target's choices that are not the draft's best lie beyond its candidates
RANKS = tuple(range(1, NUM_CANDIDATES + 1))
VOCAB_SIZE = OUTSIDE + 1  # token 0 stands in prompts only

Candidates = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens in the order of their ranks, and their scores in nats."""


class Knowledge(Protocol):
    """One session's text, and what the draft says along it and off it."""

    def truth(self, position: int) -> int:
        """The token that the target writes at `position`."""
        ...

    def candidates(self, position: int) -> Candidates:
        """What the draft says of `position` below a path that is all the target's."""
        ...

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        """What the draft says of `position` below a node that is not the target's."""
        ...


@dataclass(frozen=True, slots=True)
class BetaDraft:
    """A draft whose confidence at each position is drawn from Beta(mean * k, (1 - mean) * k).

    With that probability the target's token is the draft's best; else it lies outside the candidates
    (`OUTSIDE_SHARE`) or among the other seven with halving weights. The scores are honest: the logarithms of
    those probabilities. Where the confidence is low the runner-up's may exceed the best's.
    """

    mean: float = 0.8  # acceptance of the draft's best token
    k: float = 2.0  # concentration: the smaller, the more the draft knows when it is right

    def __post_init__(self) -> None:
        if not 0 <= self.mean <= 1:
            raise UserError(f"draft mean is {self.mean}; an acceptance lies in [0, 1]")
        if not (self.k > 0 and math.isfinite(self.k)):
            raise UserError(f"draft k is {self.k}; it must be finite and above 0")

    def session(self, draws: Draws) -> BetaKnowledge:
        return BetaKnowledge(self, draws)


class BetaKnowledge:
    """One session of a `BetaDraft`. Everything is a function of (draws, position or node)."""

    def __init__(self, draft: BetaDraft, draws: Draws) -> None:
        self._draws = draws
        self._table = _table(draft.mean, draft.k)
        self._truth: list[int] = []

    def truth(self, position: int) -> int:
        while len(self._truth) <= position:
            self._truth.append(self._draw_truth(len(self._truth)))
        return self._truth[position]

    def candidates(self, position: int) -> Candidates:
        return RANKS, self._table[self._draws.bits(Stream.CONFIDENCE, position) % NUM_QUANTILES][1]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return RANKS, self._table[self._draws.bits(Stream.OFF_PATH, node) % NUM_QUANTILES][1]

    def _draw_truth(self, position: int) -> int:
        confidence = self._table[self._draws.bits(Stream.CONFIDENCE, position) % NUM_QUANTILES][0]
        draw = self._draws.uniform(Stream.RANK, position)
        if draw < confidence:
            return 1
        rest = (draw - confidence) / (1.0 - confidence)
        if rest < OUTSIDE_SHARE:
            return OUTSIDE
        return _halving_rank((rest - OUTSIDE_SHARE) / (1.0 - OUTSIDE_SHARE))


def _halving_rank(share: float) -> int:
    """2 to 8, each half as likely as the one before."""
    whole = 1.0 - 2.0 ** -(NUM_CANDIDATES - 1)
    rank, left = 2, share * whole
    weight = 0.5
    while left >= weight and rank < NUM_CANDIDATES:
        left -= weight
        weight /= 2
        rank += 1
    return rank


@lru_cache(maxsize=64)
def _table(mean: float, k: float) -> Sequence[tuple[float, tuple[float, ...]]]:
    """For each quantile of the confidence: it, and the scores of the eight candidates."""
    if mean in (0.0, 1.0):
        quantiles: tuple[float, ...] = (mean,) * NUM_QUANTILES
    else:
        quantiles = beta_quantiles(mean * k, (1.0 - mean) * k)
    return [(confidence, _scores(confidence)) for confidence in quantiles]


def _scores(confidence: float) -> tuple[float, ...]:
    whole = 1.0 - 2.0 ** -(NUM_CANDIDATES - 1)
    rest = (1.0 - confidence) * (1.0 - OUTSIDE_SHARE)
    chances = [confidence] + [rest * 2.0**-place / whole for place in range(1, NUM_CANDIDATES)]
    return tuple(math.log(max(chance, 1e-9)) for chance in chances)
