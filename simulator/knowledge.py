"""What the draft knows, and whether it is right: the part of a world that stands for the two models.

A token's id tells the rank that the draft gives it at its place (`token_of`): `BEST` is the draft's best, and
`OUTSIDE` stands for any token beyond the draft's `NUM_CANDIDATES`. What the target writes is a row of such
tokens, the `truth`, and a node is right if its parent is and its token is the truth's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

from common.errors import UserError
from edge_client.core.confidence import LEAST_MISS, MOST_MISS, Confidence, Prior
from simulator.beta import NUM_QUANTILES, beta_quantiles
from simulator.draws import Draws, Stream
from simulator.recordings import Recording

NUM_CANDIDATES = 8
BEST = 100_001  # three bytes on the wire, as most ids of a large vocabulary take
OUTSIDE = BEST + NUM_CANDIDATES
OUTSIDE_SHARE = 0.15  # of the target's choices that are not the draft's best lie beyond its candidates
CANDIDATES = tuple(range(BEST, OUTSIDE))
VOCAB_SIZE = OUTSIDE + 1
PROMPT_TOKEN = 100_000  # every token of a prompt

HONEST = Prior(Confidence(sharpness=1.0, miss=0.02), spread=0.2)
"""Of a draft whose scores are the logarithms of true chances, whose sharpness is 1."""


def token_of(rank: int | None) -> int:
    """The token that the draft ranks so, from 1; None or beyond its candidates is `OUTSIDE`."""
    return OUTSIDE if rank is None else min(BEST - 1 + rank, OUTSIDE)


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

    @property
    def prior(self) -> Prior:
        """What a session believes of its scores at first."""
        return HONEST

    def session(self, draws: Draws, place: int = 0, first: int = 0) -> BetaKnowledge:
        """Of a session with these draws, whichever of the world's sessions it is."""
        return BetaKnowledge(self, draws)


class BetaKnowledge:
    """One session of a `BetaDraft`. Everything is a function of (draws, position or node)."""

    def __init__(self, draft: BetaDraft, draws: Draws) -> None:
        self._draws = draws
        self._table = _table(draft.mean, draft.k)
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


class Replay:
    """What happened, position by position, over texts one after the other; behind the last the first follows.

    `name` and a digest of the contents stand for it in `repr`. `candidates` and `truths` are level with each
    other; `starts` is where each text begins in them.
    """

    def __init__(self, name: str, texts: Sequence[Sequence[tuple[tuple[float, ...], int | None]]]) -> None:
        """`texts`: of each position the scores of the candidates in nats, best first, and the target's rank
        among them, from 1, or None. No text is empty. Candidates beyond `NUM_CANDIDATES` are dropped."""
        positions = [position for text in texts for position in text]
        self.name = name
        self.candidates: list[Candidates] = [
            (CANDIDATES[: len(scores)], scores[:NUM_CANDIDATES]) for scores, _ in positions
        ]
        self.truths = [token_of(rank) for _, rank in positions]
        self.starts = [0, *accumulate(len(text) for text in texts)][:-1]
        self._digest = hashlib.sha256(repr((positions, self.starts)).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Replay({self.name!r}, digest {self._digest})"

    @property
    def hit_rate(self) -> float:
        """Share of positions at which the draft's best token is the target's."""
        return self.truths.count(BEST) / len(self.truths)


@dataclass(frozen=True, slots=True)
class ReplayedDraft:
    """A draft that says what it said in a `Replay`, and is right where it was right.

    On the path a position's candidates are its own; off the path, where nothing was recorded, they are those
    of a position drawn by name. `prior` is what a session believes of such scores at first.
    """

    replay: Replay
    prior: Prior = field(default_factory=Prior)
    mean: float = math.nan  # acceptance of the draft's best token; the replay's own, no other may be given

    def __post_init__(self) -> None:
        if math.isnan(self.mean):
            object.__setattr__(self, "mean", self.replay.hit_rate)
        elif self.mean != self.replay.hit_rate:
            raise UserError(
                f"draft mean is {self.mean:g}; in {self.replay.name} it is {self.replay.hit_rate:.4g}, and "
                "what was recorded cannot be varied"
            )

    def session(self, draws: Draws, place: int = 0, first: int = 0) -> ReplayedKnowledge:
        """Of session number `place`, which begins with the text of that number; `first` is the position of
        the first token after its prompt."""
        return ReplayedKnowledge(self.replay, draws, place, first)


Draft = BetaDraft | ReplayedDraft


def recorded_draft(name: str, recording: Recording) -> ReplayedDraft:
    """A recording's. Its scores are a real draft's, so a session begins with the product's own belief."""
    texts = [list(zip(text.scores, text.ranks, strict=True)) for text in recording.texts]
    return ReplayedDraft(Replay(name, texts))


def logged_draft(name: str, lengths: Sequence[Sequence[int]]) -> ReplayedDraft:
    """A log of accepted lengths': the token after output position p is the draft's best iff lengths[p] > 1.

    A text begins below its first output token, of which the log says nothing. The draft has one candidate,
    since the log knows no runner-up, and no confidence: the prior promises it the log's hit rate everywhere.
    """
    texts = [[((0.0,), 1 if length > 1 else None) for length in text] for text in lengths]
    replay = Replay(name, texts)
    miss = min(max(1.0 - replay.hit_rate, LEAST_MISS), MOST_MISS)
    return ReplayedDraft(replay, Prior(Confidence(sharpness=1.0, miss=miss), spread=0.2))


class ReplayedKnowledge:
    """One session of a `ReplayedDraft`: from its first text on, as long as it goes."""

    def __init__(self, replay: Replay, draws: Draws, place: int, first: int) -> None:
        self._replay, self._draws = replay, draws
        self._shift = replay.starts[place % len(replay.starts)] - first
        self._length = len(replay.truths)

    def truth(self, position: int) -> int:
        return self._replay.truths[(position + self._shift) % self._length]

    def candidates(self, position: int) -> Candidates:
        return self._replay.candidates[(position + self._shift) % self._length]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._replay.candidates[self._draws.bits(Stream.OFF_PATH, node) % self._length]
