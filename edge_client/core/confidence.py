"""What is believed of a drafter's scores, and what is believed of them before a pair's first text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from common.errors import UserError

LEAST_MISS, MOST_MISS = 1e-4, 0.9  # one long run of luck is no certainty, nor is one of bad luck

FULL_LIST = 5
"""Candidates that a drafter gives at least, unless a filter (top-k, top-p, min-p) cut the list short."""

LEAST_DOUBT = 0.2
"""Of the spread: about the last 25 texts have a say, since what a pair is asked to write changes."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """The chance of candidate i is softmax(sharpness * scores)[i], with one more candidate for all other
    tokens, `rest` times as likely as the last.

    The target's score of a token is the draft's plus an error, under the same noise; were that error
    logistic, the softmax over scores would be exact, with a sharpness that falls as the error grows. At 1
    it is the chance under noise that is *not* shared: scores that share theirs say far more. Where the last
    candidate is far behind, so are all others. A list cut short by a filter ends for another reason: there
    the others' chance is `miss`, whatever the scores.
    """

    sharpness: float = 3.0  # per nat of score
    rest: float = 1.0  # chance of all other tokens over that of the last candidate
    miss: float = 0.03  # chance of all other tokens where a filter left fewer than `FULL_LIST`

    def __post_init__(self) -> None:
        for name, value in (("sharpness", self.sharpness), ("rest", self.rest)):
            if not (value > 0 and math.isfinite(value)):
                raise UserError(f"{name} is {value}; it must be finite and above 0")
        if not 0 <= self.miss < 1:
            raise UserError(f"miss is {self.miss}; it must lie in [0, 1)")


@dataclass(frozen=True, slots=True)
class Guess:
    """Of a number above 0, by its logarithm: a pair has a mean, and each of its texts lies around that."""

    spread: float  # standard deviation between the texts of a pair
    doubt: float  # standard deviation of what the pair's mean is believed to be; 0 = known

    def __post_init__(self) -> None:
        if not (self.spread > 0 and math.isfinite(self.spread)):
            raise UserError(f"spread is {self.spread}; it must be finite and above 0")
        if not (self.doubt >= 0 and math.isfinite(self.doubt)):
            raise UserError(f"doubt is {self.doubt}; it must be finite and 0 or more")

    @property
    def variance(self) -> float:
        """Of the next text's value around the mean that is believed in."""
        return self.spread**2 + self.doubt**2

    @property
    def gain(self) -> float:
        """Share by which the believed mean follows what a text was believed to be at its end. Of what moved
        that belief, the text's own kind explains spread^2, the pair's doubt^2."""
        return self.doubt**2 / self.variance

    def after(self, information: float) -> Guess:
        """A text that told so much (Fisher information of the logarithm) leaves less doubt (Kalman 1960)."""
        if information <= 0.0:
            return self
        left = 1.0 - self.doubt**2 / (self.variance + 1.0 / information)
        least = min(self.doubt, LEAST_DOUBT * self.spread)
        return replace(self, doubt=max(self.doubt * math.sqrt(left), least))


SURVIVAL, SURVIVAL_WEIGHT = 0.7, 4
"""The mean promise of a best candidate before any was seen, and how many drafted nodes that counts for."""

KEPT_WEIGHT = 20
"""Drafted nodes that the mean of earlier texts counts for, at most."""

SURVIVAL_MEMORY = 100
"""Drafted nodes of which it is the mean: it changes with the text, but over a round trip of twenty turns its
twentieth power is asked for, which magnifies what a shorter mean varies by chance."""


@dataclass(slots=True)
class Survival:
    """The chance that a path's next token is its best candidate, as the draft promises: a fading mean."""

    mean: float = SURVIVAL
    weight: float = SURVIVAL_WEIGHT  # drafted nodes

    def add(self, promise: float) -> None:
        """Of another drafted node."""
        self.weight = min(self.weight + 1, SURVIVAL_MEMORY)
        self.mean += (promise - self.mean) / self.weight


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a text before its first token. What is shipped stands in `priors.py`."""

    confidence: Confidence = Confidence()
    sharpness: Guess = Guess(spread=0.3, doubt=0.5)
    rest: Guess = Guess(spread=0.7, doubt=0.7)
    survival: float = SURVIVAL
    survival_weight: float = SURVIVAL_WEIGHT
