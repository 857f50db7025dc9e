"""From a drafter's scores to the chance that each candidate is the target's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import UserError

MIN_LOGPROB = -16.0  # nats; the least that one byte on the wire can say


@dataclass(frozen=True, slots=True)
class Confidence:
    """P(candidate i) = (1 - miss) * softmax(sharpness * scores)[i].

    The target's score of a token is the draft's plus an error, under the same noise; were that error
    logistic, the softmax over scores would be exact, with a sharpness that falls as the error grows.
    """

    sharpness: float = 1.0  # per nat; below 1 where the draft is surer than it is right
    miss: float = 0.02  # chance that the target's choice is none of the candidates

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
