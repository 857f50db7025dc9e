"""What the draft knows, and whether it is right: the part of a world that stands for the two models.

A token's id tells the rank that the draft gives it at its place (`token_of`): `BEST` is the draft's best, and
`OUTSIDE` stands for any token beyond the draft's `NUM_CANDIDATES`. What the target writes is a row of such
tokens, the `truth`, and a node is right if its parent is and its token is the truth's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from simulator.beta import NUM_QUANTILES, beta_quantiles
from simulator.draws import Draws, Stream

NUM_CANDIDATES = 8
BEST = 100_001  # three bytes on the wire, as most ids of a large vocabulary take
OUTSIDE = BEST + NUM_CANDIDATES
OUTSIDE_SHARE = 0.15  # of the target's choices that are not the draft's best lie beyond its candidates
REST = OUTSIDE_SHARE / (1.0 - OUTSIDE_SHARE) * (2 ** (NUM_CANDIDATES - 1) - 1)
"""Chance of all other tokens over that of the last candidate: the seventh of seven halving weights."""
CANDIDATES = tuple(range(BEST, OUTSIDE))
PROMPT_TOKEN = 100_000  # every token of a prompt


def token_of(rank: int | None) -> int:
    """The token that the draft ranks so, from 1; None or beyond its candidates is `OUTSIDE`."""
    return OUTSIDE if rank is None else min(BEST - 1 + rank, OUTSIDE)


VOCAB_SIZE = 2**21  # three bytes on the wire
KINDS = 64  # of each token in a text that somebody looks things up in (`Unlike`)


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


class BetaKnowledge:
    """One session of a `BetaDraft`. Everything is a function of (draws, position or node)."""

    def __init__(self, mean: float, k: float, draws: Draws) -> None:
        self._draws = draws
        self._table = _table(mean, k)
        self._places: list[tuple[int, Candidates]] = []  # by position: the truth, and what the draft says

    def truth(self, position: int) -> int:
        return self._place(position)[0]

    def candidates(self, position: int) -> Candidates:
        return self._place(position)[1]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return CANDIDATES, self._table[self._draws.bits(Stream.OFF_PATH, node) % NUM_QUANTILES][1]

    def _place(self, position: int) -> tuple[int, Candidates]:
        while len(self._places) <= position:
            number = len(self._places)
            quantile = self._draws.bits(Stream.CONFIDENCE, number) % NUM_QUANTILES
            confidence, scores = self._table[quantile]
            self._places.append((self._draw_truth(number, confidence), (CANDIDATES, scores)))
        return self._places[position]

    def _draw_truth(self, position: int, confidence: float) -> int:
        draw = self._draws.uniform(Stream.RANK, position)
        if draw < confidence:
            return BEST
        rest = (draw - confidence) / (1.0 - confidence)
        if rest < OUTSIDE_SHARE:
            return OUTSIDE
        return token_of(_halving_rank((rest - OUTSIDE_SHARE) / (1.0 - OUTSIDE_SHARE)))


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
    chances.sort(reverse=True)
    return tuple(math.log(max(chance, 1e-9)) for chance in chances)


class ReplayedKnowledge:
    """One session of a `ReplayedDraft`: `shift` places behind its positions in the truths and what the draft
    said, which are level with each other, and round and round."""

    def __init__(
        self, truths: Sequence[int], candidates: Sequence[Candidates], shift: int, draws: Draws
    ) -> None:
        self._truths, self._candidates, self._shift, self._draws = truths, candidates, shift, draws
        self._length = len(truths)

    def truth(self, position: int) -> int:
        return self._truths[(position + self._shift) % self._length]

    def candidates(self, position: int) -> Candidates:
        return self._candidates[(position + self._shift) % self._length]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._candidates[self._draws.bits(Stream.OFF_PATH, node) % self._length]


class Unlike:
    """The same session for those who look things up in a text: each place has its tokens in one of `KINDS`
    kinds, drawn at random.

    Else a text, being ranks, would be the draft's best token over and over, and to repeat what was there a
    fine draft. So two tokens that stood side by side may well do so again, and foretell nothing.
    """

    def __init__(self, knowledge: Knowledge, draws: Draws) -> None:
        self._knowledge, self._draws = knowledge, draws

    def truth(self, position: int) -> int:
        return self._knowledge.truth(position) + self._shift(position)

    def candidates(self, position: int) -> Candidates:
        return self._shifted(self._knowledge.candidates(position), position)

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._shifted(self._knowledge.candidates_off_path(node, position), position)

    def _shifted(self, candidates: Candidates, position: int) -> Candidates:
        shift = self._shift(position)
        tokens, scores = candidates
        return tuple(token + shift for token in tokens), scores

    def _shift(self, position: int) -> int:
        return (NUM_CANDIDATES + 1) * (self._draws.bits(Stream.KIND, position) % KINDS)
