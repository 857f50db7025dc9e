"""What is believed of a drafter's scores: two numbers, and what they are before a pair's first text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.errors import UserError

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
