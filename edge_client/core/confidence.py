"""From a drafter's scores to the chance that each candidate is the target's choice, learnt on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.estimators import RatioEstimator

MIN_LOGPROB = -16.0  # nats; the least that one byte on the wire can say

GRID = np.linspace(math.log(0.25), math.log(16.0), 25)  # log sharpness; 0.17 apart
"""From a draft that knows next to nothing to one that errs in the last digits only."""

HALF_LIFE = 200.0  # observations; a text changes its kind within hundreds of tokens
MISS_WEIGHT = 25.0  # observations that the prior's miss counts as
LEAST_MISS, MOST_MISS = 1e-4, 0.9  # one long run of luck is no certainty, nor is one of bad luck


@dataclass(frozen=True, slots=True)
class Confidence:
    """P(candidate i) = (1 - miss) * softmax(sharpness * scores)[i].

    The target's score of a token is the draft's plus an error, under the same noise; were that error
    logistic, the softmax over scores would be exact, with a sharpness that falls as the error grows. At 1
    it is the chance under noise that is *not* shared: scores that share theirs say far more.
    """

    sharpness: float = 3.0  # per nat
    miss: float = 0.008  # chance that the target's choice is none of the candidates

    def __post_init__(self) -> None:
        if not (self.sharpness > 0 and math.isfinite(self.sharpness)):
            raise UserError(f"sharpness is {self.sharpness}; it must be finite and above 0")
        if not 0 <= self.miss < 1:
            raise UserError(f"miss is {self.miss}; it must lie in [0, 1)")

    def logprobs(self, scores: Sequence[float]) -> list[float]:
        """Log-probabilities in nats, one per candidate; `scores` decreasing, in nats."""
        if not scores:
            return []
        best = scores[0]
        weights = [math.exp(self.sharpness * (score - best)) for score in scores]
        scale = math.log(1.0 - self.miss) - math.log(sum(weights))
        return [max(MIN_LOGPROB, self.sharpness * (score - best) + scale) for score in scores]


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a pair before its first text. Fitted on prompts of the demo pair that no figure is
    reported on (`python -m benchmarks.calibration`): sharpness 4.6 and miss 0.0065 greedy, 2.6 and 0.011 at
    temperature 0.8."""

    confidence: Confidence = Confidence()
    spread: float = 0.5  # standard deviation of log sharpness

    def __post_init__(self) -> None:
        if not (self.spread > 0 and math.isfinite(self.spread)):
            raise UserError(f"spread is {self.spread}; it must be finite and above 0")


class Calibration:
    """Keeps `confidence` true to what was committed: the likeliest sharpness given a prior and the past.

    The likelihood of each sharpness on a fixed grid is summed with fading, half of it per `HALF_LIFE`
    observations; the maximum is taken between grid points through a parabola. The prior does not fade.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        prior = prior or Prior()
        self.confidence = prior.confidence
        self.num_observed = 0
        self._log_prior = -0.5 * ((GRID - math.log(prior.confidence.sharpness)) / prior.spread) ** 2
        self._log_likelihood = np.zeros(len(GRID))
        self._miss = RatioEstimator(prior.confidence.miss, MISS_WEIGHT, HALF_LIFE)
        self._fade = 0.5 ** (1 / HALF_LIFE)

    def observe(self, scores: Sequence[float], chosen: int | None) -> None:
        """After a node with these `scores` (decreasing, finite, nats) the target chose candidate `chosen`, or
        none of them (None)."""
        if not scores:
            return  # a drafter that proposes nothing says nothing about its scores
        self.num_observed += 1
        self._log_likelihood *= self._fade
        if chosen is not None and len(scores) > 1:
            self._log_likelihood += _log_softmax(np.asarray(scores), chosen)
        self._miss.add(1.0 if chosen is None else 0.0, 1.0)
        miss = min(max(self._miss.ratio, LEAST_MISS), MOST_MISS)
        self.confidence = Confidence(math.exp(_peak(self._log_prior + self._log_likelihood)), miss)


def _log_softmax(scores: NDArray[np.float64], chosen: int) -> NDArray[np.float64]:
    """[grid] log-probability of the chosen candidate under every sharpness of the grid."""
    logits = np.exp(GRID)[:, None] * (scores - scores[0])
    result: NDArray[np.float64] = logits[:, chosen] - np.log(np.exp(logits).sum(axis=1))
    return np.maximum(result, MIN_LOGPROB)  # a single surprise must not outweigh everything else


def _peak(heights: NDArray[np.float64]) -> float:
    """Where on the grid the heights are largest, by the parabola through the largest and its neighbours."""
    top = int(heights.argmax())
    if top in (0, len(GRID) - 1):
        return float(GRID[top])
    left, middle, right = heights[top - 1 : top + 2].tolist()
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return float(GRID[top] + shift * (GRID[1] - GRID[0]))
