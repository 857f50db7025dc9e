"""Models a middle tier: a model near the edge, between device and target (HSD, arXiv 2510.19705).

The three are a chain. At each position the middle model's choice is drawn from what the device's draft says,
and the target's from what the middle model says. So the device is right either with the middle model, or by
luck where that is wrong, as a smaller model of the same kind is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.errors import UserError
from simulator.events import Draws, DrawStream
from simulator.knowledge import (
    CANDIDATES,
    NUM_CANDIDATES,
    NUM_QUANTILES,
    OUTSIDE,
    BetaKnowledge,
    Candidates,
    Knowledge,
    beta_scores,
    drawn_rank,
)


@dataclass(frozen=True, slots=True)
class TierSpec:
    """Describes the middle model and its place. Times in seconds.

    `rtt` is the part of the world's round trip that lies between the device and the near edge. In a world
    with a tier the mean of its draft is the share of positions at which the device's best token is the
    middle model's; `mean` is the share at which that is the target's. At a share `likeness` of the positions
    the middle model is as sure as the draft, since what is easy is easy for both.
    """

    rtt: float = 0.010
    draft_time: float = 0.015  # of a step of the middle model
    draft_time_per_node: float = 0.0003  # for each node beyond the first
    mean: float = 0.9
    k: float = 2.0  # as of `BetaDraft`
    likeness: float = 0.7

    def __post_init__(self) -> None:
        for name in ("rtt", "draft_time", "draft_time_per_node"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"tier {name} is {getattr(self, name)}; it must be finite and 0 or more")
        for name in ("mean", "likeness"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"tier {name} is {getattr(self, name)}; it must lie in [0, 1]")
        if not 0 < self.k < math.inf:
            raise UserError(f"tier k is {self.k}; it must be finite and above 0")


class TieredKnowledge:
    """Holds what the device's draft says of a text that the target writes.

    Args: draft, what it says of the middle model's choices, which are the truth there.
    """

    def __init__(self, draft: Knowledge, middle: MiddleKnowledge) -> None:
        self._draft, self._middle = draft, middle

    def truth(self, position: int) -> int:
        return self._middle.truth(position)

    def candidates(self, position: int) -> Candidates:
        return self._draft.candidates(position)

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._draft.candidates_off_path(node, position)


class MiddleKnowledge:
    """Holds what the middle model says of the same text. Everything is a function of (draws, position)."""

    def __init__(self, spec: TierSpec, draft: BetaKnowledge, draws: Draws) -> None:
        self._likeness, self._draft, self._draws = spec.likeness, draft, draws
        self._table = beta_scores(spec.mean, spec.k)

    def truth(self, position: int) -> int:
        confidence, _ = self._sure(position)
        rank = drawn_rank(self._draws.uniform(DrawStream.MIDDLE_RANK, position), confidence)
        return self._ranked(position)[NUM_CANDIDATES if rank is None else rank - 1]

    def candidates(self, position: int) -> Candidates:
        return self._ranked(position)[:NUM_CANDIDATES], self._sure(position)[1]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        quantile = self._draws.bits(DrawStream.MIDDLE_OFF_PATH, node) % NUM_QUANTILES
        return CANDIDATES, self._table[quantile][1]

    def _sure(self, position: int) -> tuple[float, tuple[float, ...]]:
        """Return the confidence at a position, and the scores of the candidates."""
        alike = self._draws.uniform(DrawStream.MIDDLE_LIKENESS, position) < self._likeness
        stream = DrawStream.CONFIDENCE if alike else DrawStream.MIDDLE_CONFIDENCE
        return self._table[self._draws.bits(stream, position) % NUM_QUANTILES]

    def _ranked(self, position: int) -> tuple[int, ...]:
        """Return all tokens, the middle model's choice first and the others as the draft ranks them."""
        choice = self._draft.truth(position)
        return choice, *(token for token in (*CANDIDATES, OUTSIDE) if token != choice)
