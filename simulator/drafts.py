"""Defines the drafts of a world: known by their acceptance alone, or recorded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from common.calibration import SHIPPED, BetaPrior, Confidence, Prior
from common.errors import UserError
from simulator.events import Draws
from simulator.knowledge import (
    BEST,
    CANDIDATES,
    NUM_CANDIDATES,
    REST,
    BetaKnowledge,
    Candidates,
    Knowledge,
    ReplayedKnowledge,
    Unlike,
    token_of,
)
from simulator.recordings import RecordedText, Recording

KNOWN = BetaPrior(spread=0.2, doubt=0.0)

HONEST = Prior(Confidence(sharpness=1.0, rest=REST), KNOWN, KNOWN)
"""Of a draft whose scores are the logarithms of true chances, whose sharpness is 1."""


@dataclass(frozen=True, slots=True)
class BetaDraft:
    """Draws a draft's confidence at each position from Beta(mean * k, (1 - mean) * k).

    With that probability the target's token is the draft's best; else it lies outside the candidates
    (`OUTSIDE_SHARE`) or among the other seven with halving weights. The scores are honest: the logarithms of
    those probabilities. Where the confidence is low the runner-up's may exceed the best's.
    """

    mean: float = 0.8  # acceptance of the draft's best token
    k: float = 2.0  # concentration: the smaller, the more the draft knows when it is right
    # Chance that a mask knows what it would with one more token, if the device has masks.
    sight: float = field(default=0.95, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.mean <= 1:
            raise UserError(f"draft mean is {self.mean}; an acceptance lies in [0, 1]")
        if not (self.k > 0 and math.isfinite(self.k)):
            raise UserError(f"draft k is {self.k}; it must be finite and above 0")
        if not 0 <= self.sight <= 1:
            raise UserError(f"draft sight is {self.sight}; a chance lies in [0, 1]")

    @property
    def prior(self) -> Prior:
        """Return a session's first belief about its scores."""
        return HONEST

    def session(self, draws: Draws, place: int = 0, first: int = 0) -> Knowledge:
        """Return the knowledge of a session with these draws, whatever its place is."""
        return BetaKnowledge(self.mean, self.k, draws, self.sight)

    def read(self, draws: Draws, place: int = 0, first: int = 0) -> Knowledge:
        """Return the same knowledge for readers that look up tokens in the text."""
        return Unlike(self.session(draws, place, first), draws)


class ReplayedTexts:
    """Holds recorded texts, position by position, one after the other; the first follows the last.

    `name` and a digest of the contents represent it in `repr`. `candidates` and `truths` are parallel;
    `starts` is where each text begins in them. `written` are the same two with the recorded ids
    in place of ranks.
    """

    def __init__(
        self,
        name: str,
        texts: Sequence[Sequence[tuple[tuple[float, ...], int | None]]],
        written: tuple[list[Candidates], list[int]],
    ) -> None:
        """`texts`: of each position the scores of the candidates in nats, best first, and the target's rank
        among them, from 1, or None. No text is empty. Candidates beyond `NUM_CANDIDATES` are dropped."""
        self.written = written
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
        """Return the share of positions at which the draft's best token is the target's."""
        return self.truths.count(BEST) / len(self.truths)


@dataclass(frozen=True, slots=True)
class ReplayedDraft:
    """Replays the draft of a `ReplayedTexts`, right and wrong at the recorded positions.

    On the path a position's candidates are its own; off the path, where nothing was recorded, they are those
    of a position drawn by name. `prior` is a session's first belief about such scores.
    """

    replay: ReplayedTexts
    prior: Prior = field(default_factory=Prior)
    mean: float = math.nan  # acceptance of the draft's best token; the replay's own, no other may be given
    masked: tuple[Sequence[Candidates], ...] = field(default=(), repr=False)  # recorded ids, by mask

    def __post_init__(self) -> None:
        if math.isnan(self.mean):
            object.__setattr__(self, "mean", self.replay.hit_rate)
        elif self.mean != self.replay.hit_rate:
            raise UserError(
                f"draft mean is {self.mean:g}; in {self.replay.name} it is {self.replay.hit_rate:.4g}, and "
                "what was recorded cannot be varied"
            )

    def session(self, draws: Draws, place: int = 0, first: int = 0) -> ReplayedKnowledge:
        """Return what session number `place` knows, which begins with the text of that number; `first` is
        the position of the first token after its prompt."""
        replay = self.replay
        if self.masked:  # a rank of the draft is none of a mask
            return self.read(draws, place, first)
        shift = replay.starts[place % len(replay.starts)] - first
        return ReplayedKnowledge(replay.truths, replay.candidates, shift, draws)

    def read(self, draws: Draws, place: int = 0, first: int = 0) -> ReplayedKnowledge:
        """Return the same knowledge for readers that look up tokens, with the recorded ids."""
        replay = self.replay
        candidates, tokens = replay.written
        shift = replay.starts[place % len(replay.starts)] - first
        return ReplayedKnowledge(tokens, candidates, shift, draws, self.masked)


Draft = BetaDraft | ReplayedDraft


def recorded_draft(
    name: str, recording: Recording, masked: Sequence[Sequence[RecordedText]] = ()
) -> ReplayedDraft:
    """Return a recording's draft. Its scores are real, so a session begins with the product's own belief.

    Args: masked: the same texts as each mask of a parallel draft sees them.
    """
    texts = [list(zip(text.scores, text.ranks, strict=True)) for text in recording.texts]
    tokens = [token for text in recording.texts for token in text.tokens]
    replay = ReplayedTexts(name, texts, (_said(recording.texts), tokens))
    prior = SHIPPED.at(recording.header.temperature)
    return ReplayedDraft(replay, prior, masked=tuple(map(_said, masked)))


def _said(texts: Sequence[RecordedText]) -> list[Candidates]:
    """Return the candidates of all positions, with the recorded ids."""
    return [
        (ids[:NUM_CANDIDATES], scores[:NUM_CANDIDATES])
        for text in texts
        for ids, scores in zip(text.candidates, text.scores, strict=True)
    ]
