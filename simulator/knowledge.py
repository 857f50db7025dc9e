"""Models what the draft knows and whether it is right: the part of a world that replaces the two models.

A token's id is the rank that the draft gives it at its place (`token_of`): `BEST` is the draft's best, and
`OUTSIDE` stands for any token beyond the draft's `NUM_CANDIDATES`. The target writes a row of such
tokens, the `truth`, and a node is right if its parent is and its token is the truth's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

from simulator.events import Draws, DrawStream

# Quantiles of the Beta distribution, tabled: a draft's confidence is looked up millions of times.

NUM_QUANTILES = 1024
"""Midpoints of equal shares of probability. The mean over them is the distribution's to 1e-4."""

TINY = 1e-300
MAX_TERMS = 300


@lru_cache(maxsize=64)
def beta_quantiles(a: float, b: float) -> tuple[float, ...]:
    """Return `NUM_QUANTILES` rising values of Beta(a, b), each the median of an equal share; `a`, `b` > 0."""
    return tuple(_quantile((share + 0.5) / NUM_QUANTILES, a, b) for share in range(NUM_QUANTILES))


def beta_cdf(x: float, a: float, b: float) -> float:
    """Compute the regularised incomplete beta I_x(a, b), by Lentz's fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # there the fraction converges slowly; its mirror image does not
        return 1.0 - beta_cdf(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), evaluated forward."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _nonzero(1.0 + term * d)
            c = _nonzero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-13:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def _quantile(share: float, a: float, b: float) -> float:
    """Return the quantile by bisection. 50 halvings leave an error of 1e-15."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        if beta_cdf(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


NUM_CANDIDATES = 8
BEST = 100_001  # three bytes on the wire, as most ids of a large vocabulary take
OUTSIDE = BEST + NUM_CANDIDATES
OUTSIDE_SHARE = 0.15  # of the target's choices that are not the draft's best lie beyond its candidates
REST = OUTSIDE_SHARE / (1.0 - OUTSIDE_SHARE) * (2 ** (NUM_CANDIDATES - 1) - 1)
"""Chance of all other tokens over that of the last candidate: the seventh of seven halving weights."""
CANDIDATES = tuple(range(BEST, OUTSIDE))
PROMPT_TOKEN = 100_000  # every token of a prompt


def token_of(rank: int | None) -> int:
    """Return the token of this rank, from 1; None and ranks beyond the candidates give `OUTSIDE`."""
    return OUTSIDE if rank is None else min(BEST - 1 + rank, OUTSIDE)


VOCAB_SIZE = 2**21  # three bytes on the wire
KINDS = 64  # of each token in a text that somebody looks things up in (`Unlike`)


Candidates = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens in the order of their ranks, and their scores in nats."""


class Knowledge(Protocol):
    """Holds one session's text, and the draft's output along it and off it."""

    def truth(self, position: int) -> int:
        """Return the token that the target writes at `position`."""
        ...

    def candidates(self, position: int) -> Candidates:
        """Return the draft's candidates at `position` below a path that is all the target's."""
        ...

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        """Return the draft's candidates at `position` below a node that is not the target's."""
        ...


@runtime_checkable
class MaskedKnowledge(Protocol):
    """Holds what the masks of a parallel draft say along one session's text."""

    def candidates_by_mask(self, position: int, mask: int) -> Candidates:
        """Return the candidates at `position` of the mask of this number, from 1: so many tokens before are
        unknown to it, and the target's up to there."""
        ...


class BetaKnowledge:
    """Simulates one session of a `BetaDraft`. Everything is a function of (draws, position or node)."""

    def __init__(self, mean: float, k: float, draws: Draws, sight: float = 1.0) -> None:
        self._draws, self._sight = draws, sight
        self._table = beta_scores(mean, k)
        self._places: list[tuple[int, Candidates]] = []  # by position: the truth, and what the draft says

    def truth(self, position: int) -> int:
        return self._place(position)[0]

    def candidates(self, position: int) -> Candidates:
        return self._place(position)[1]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return CANDIDATES, self._table[self._draws.bits(DrawStream.OFF_PATH, node) % NUM_QUANTILES][1]

    def candidates_by_mask(self, position: int, mask: int) -> Candidates:
        tokens, scores = self.candidates(position)
        if self._draws.uniform(DrawStream.MASK, position) < self._sight**mask:
            return tokens, scores
        return (*tokens[2:], *tokens[:2]), scores  # as sure as before, and right as seldom as its third

    def _place(self, position: int) -> tuple[int, Candidates]:
        while len(self._places) <= position:
            number = len(self._places)
            quantile = self._draws.bits(DrawStream.CONFIDENCE, number) % NUM_QUANTILES
            confidence, scores = self._table[quantile]
            self._places.append((self._draw_truth(number, confidence), (CANDIDATES, scores)))
        return self._places[position]

    def _draw_truth(self, position: int, confidence: float) -> int:
        return token_of(drawn_rank(self._draws.uniform(DrawStream.RANK, position), confidence))


def drawn_rank(draw: float, confidence: float) -> int | None:
    """Return the truth's rank in a draft's candidates, from 1; None outside them. `draw` lies in [0, 1)."""
    if draw < confidence:
        return 1
    rest = (draw - confidence) / (1.0 - confidence)
    if rest < OUTSIDE_SHARE:
        return None
    return halving_rank((rest - OUTSIDE_SHARE) / (1.0 - OUTSIDE_SHARE))


def halving_rank(share: float) -> int:
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
def beta_scores(mean: float, k: float) -> Sequence[tuple[float, tuple[float, ...]]]:
    """Return each quantile of the confidence with the scores of the eight candidates."""
    if mean in (0.0, 1.0):
        quantiles: tuple[float, ...] = (mean,) * NUM_QUANTILES
    else:
        quantiles = beta_quantiles(mean * k, (1.0 - mean) * k)
    return [(confidence, _scores(confidence)) for confidence in quantiles]


def _scores(confidence: float) -> tuple[float, ...]:
    whole = 1.0 - 2.0 ** -(NUM_CANDIDATES - 1)
    rest = (1.0 - confidence) * (1.0 - OUTSIDE_SHARE)
    chances = [confidence] + [rest * 2.0**-place / whole for place in range(1, NUM_CANDIDATES)]
    chances.sort(reverse=True)
    return tuple(math.log(max(chance, 1e-9)) for chance in chances)


class ReplayedKnowledge:
    """Replays one session of a `ReplayedDraft`: `shift` places behind its positions in the truths and the
    draft's output, which are parallel, round and round."""

    def __init__(
        self,
        truths: Sequence[int],
        candidates: Sequence[Candidates],
        shift: int,
        draws: Draws,
        masked: Sequence[Sequence[Candidates]] = (),
    ) -> None:
        """`masked`: as `candidates`, by the number of a mask."""
        self._truths, self._candidates, self._shift, self._draws = truths, candidates, shift, draws
        self._masked, self.num_masks = masked, len(masked)
        self._length = len(truths)

    def truth(self, position: int) -> int:
        return self._truths[(position + self._shift) % self._length]

    def candidates(self, position: int) -> Candidates:
        return self._candidates[(position + self._shift) % self._length]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._candidates[self._draws.bits(DrawStream.OFF_PATH, node) % self._length]

    def candidates_by_mask(self, position: int, mask: int) -> Candidates:
        return self._masked[mask - 1][(position + self._shift) % self._length]


class Unlike:
    """Gives the same session to readers that look up tokens in a text: each place has its tokens in one of
    `KINDS` kinds, drawn at random.

    A text of ranks would be the draft's best token over and over, and repeating it a fine
    draft. So two tokens that stood side by side may do so again, and foretell nothing.
    """

    def __init__(self, knowledge: Knowledge, draws: Draws) -> None:
        self._knowledge, self._draws = knowledge, draws

    def truth(self, position: int) -> int:
        return self._knowledge.truth(position) + self._shift(position)

    def candidates(self, position: int) -> Candidates:
        return self._shifted(self._knowledge.candidates(position), position)

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._shifted(self._knowledge.candidates_off_path(node, position), position)

    def candidates_by_mask(self, position: int, mask: int) -> Candidates:
        assert isinstance(self._knowledge, MaskedKnowledge), "checked by `masked_knowledge_of`"
        return self._shifted(self._knowledge.candidates_by_mask(position, mask), position)

    def _shifted(self, candidates: Candidates, position: int) -> Candidates:
        shift = self._shift(position)
        tokens, scores = candidates
        return tuple(token + shift for token in tokens), scores

    def _shift(self, position: int) -> int:
        return (NUM_CANDIDATES + 1) * (self._draws.bits(DrawStream.KIND, position) % KINDS)
