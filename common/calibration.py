"""Calibrate a drafter's scores online: estimate the chance that each candidate is the target's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Final

from common.estimators import RatioEstimator
from common.sampling import SamplingParams

# The model of a drafter's scores, and its prior before a pair's first text.

LEAST_MISS, MOST_MISS = 1e-4, 0.9  # one long run of luck is no certainty, nor is one of bad luck

FULL_LIST = 5
"""The least number of candidates that a drafter gives, unless a filter (top-k, top-p, min-p) cuts them."""

LEAST_DOUBT = 0.2
"""Share of the spread: about the last 25 texts count, since a pair's tasks change."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """Maps scores to chances: the chance of candidate i is softmax(sharpness * scores)[i]. One more candidate
    stands for all other tokens, `rest` times as likely as the last.

    The target's score of a token is the draft's plus an error, under the same noise. If that error were
    logistic, the softmax over scores would be exact; its sharpness falls as the error grows. A sharpness of 1
    is the chance under noise that is *not* shared; scores with shared noise say far more. If the last
    candidate is far behind, so are all others. A list cut short by a filter ends for another reason: the
    others' chance is `miss` there.
    """

    sharpness: float = 3.0  # per nat of score
    rest: float = 1.0  # chance of all other tokens over that of the last candidate
    miss: float = 0.03  # chance of all other tokens where a filter left fewer than `FULL_LIST`


@dataclass(frozen=True, slots=True)
class BetaPrior:
    """A prior for the logarithm of a positive number. Each pair has a mean; its texts scatter around it."""

    spread: float  # standard deviation between the texts of a pair
    doubt: float  # standard deviation of the pair's estimated mean; 0 = known

    @property
    def variance(self) -> float:
        """The variance of the next text's value around the estimated mean."""
        return self.spread**2 + self.doubt**2

    @property
    def gain(self) -> float:
        """The share of a text's deviation by which the estimated mean moves: doubt^2 over the variance."""
        return self.doubt**2 / self.variance

    def after(self, information: float) -> BetaPrior:
        """Reduce the doubt by a text's Fisher `information` on the logarithm (Kalman 1960)."""
        if information <= 0.0:
            return self
        left = 1.0 - self.doubt**2 / (self.variance + 1.0 / information)
        least = min(self.doubt, LEAST_DOUBT * self.spread)
        return replace(self, doubt=max(self.doubt * math.sqrt(left), least))


SURVIVAL, SURVIVAL_WEIGHT = 0.7, 4
"""The mean promise of a best candidate before the first node, and the drafted nodes that it counts for."""

KEPT_WEIGHT = 20
"""The most drafted nodes that the mean of earlier texts counts for."""

SURVIVAL_MEMORY = 100
"""Drafted nodes in the mean. Its twentieth power counts over twenty turns, so noise must stay small."""


@dataclass(slots=True)
class Survival:
    """Tracks the promised chance that a path's next token is its best candidate, as a fading mean."""

    mean: float = SURVIVAL
    weight: float = SURVIVAL_WEIGHT  # drafted nodes

    def add(self, promise: float) -> None:
        """Add the promise of another drafted node."""
        self.weight = min(self.weight + 1, SURVIVAL_MEMORY)
        self.mean += (promise - self.mean) / self.weight


@dataclass(frozen=True, slots=True)
class Prior:
    """Describes a text's calibration before its first token; `SHIPPED` holds the defaults."""

    confidence: Confidence = Confidence()
    sharpness: BetaPrior = BetaPrior(spread=0.3, doubt=0.5)
    rest: BetaPrior = BetaPrior(spread=0.7, doubt=0.7)
    survival: float = SURVIVAL
    survival_weight: float = SURVIVAL_WEIGHT


MIN_LOGPROB = -16.0  # nats; the least that one byte on the wire can say

FARTHEST = math.log(64.0)
"""The farthest that an estimate may leave its prior: a useless draft, or a nearly exact one."""

FARTHEST_MEAN = math.log(1e4)  # of a pair's; however many texts pushed it there

HALF_LIFE = 200.0  # observations; a text changes its kind within hundreds of tokens
FADE = 0.5 ** (1 / HALF_LIFE)
LONGEST_STEP = 0.25  # of a logarithm per observation: a surprise to a sure draft has next to no information
NEGLIGIBLE = -700.0  # nats; exp of less underflows
MISS_WEIGHT = 25.0  # observations that the prior's miss counts as


def promised(confidence: Confidence, scores: Sequence[float]) -> list[float]:
    """Return log-probabilities in nats, one per candidate; `scores` decrease and are in nats."""
    if not scores:
        return []
    sharpness, best = confidence.sharpness, scores[0]
    scaled = [sharpness * (score - best) for score in scores]
    weights = list(map(math.exp, scaled))
    if len(weights) < FULL_LIST:
        scale = math.log(1.0 - confidence.miss) - math.log(sum(weights))
    else:
        scale = -math.log(sum(weights) + confidence.rest * weights[-1])
    logprobs = [z + scale for z in scaled]
    if min(logprobs) > MIN_LOGPROB:
        return logprobs
    return [max(MIN_LOGPROB, logprob) for logprob in logprobs]


def slopes(
    sharpness: float, rest: float, scores: Sequence[float], chosen: int | None
) -> tuple[float, float, float]:
    """Return the slopes of a choice's log-likelihood: the gradient by log sharpness, its Fisher information
    and the chance of all other tokens.

    With the scaled scores z, the gradient is z[chosen] - mean and the information is the variance.
    """
    best = scores[0]
    scaled = [sharpness * (score - best) for score in scores]
    weights = [math.exp(z if z > NEGLIGIBLE else NEGLIGIBLE) for z in scaled]
    others = rest * weights[-1]
    weights[-1] += others
    total = sum(weights)
    products = list(map(mul, weights, scaled))
    mean = sum(products) / total
    squares = sum(map(mul, products, scaled)) / total
    hit = scaled[-1 if chosen is None else chosen]
    return hit - mean, max(0.0, squares - mean * mean), others / total


class Followed:
    """Estimates the logarithm of a number by maximum likelihood, online.

    Each observation moves it by gradient / information (Amari's natural gradient). The information is summed
    with fading, half per `HALF_LIFE` observations; what fades is given back to the prior.
    """

    def __init__(self, value: float, guess: BetaPrior) -> None:
        self.log = self.prior = math.log(value)
        self.information = self._prior_information = 1.0 / guess.variance
        self._lost = (1.0 - FADE) * self._prior_information

    def follow(self, gradient: float, information: float) -> None:
        """Add one observation: the log-likelihood's gradient and information by the logarithm."""
        lost = self._lost
        self.information = FADE * self.information + lost + information
        step = (gradient + lost * (self.prior - self.log)) / self.information
        log = self.log + min(max(step, -LONGEST_STEP), LONGEST_STEP)
        self.log = min(max(log, self.prior - FARTHEST), self.prior + FARTHEST)

    @property
    def learnt(self) -> float:
        """The information that the observations brought."""
        return self.information - self._prior_information

    def mean_after(self, guess: BetaPrior) -> float:
        """Return the pair's estimated mean, updated with this text."""
        log = self.prior + guess.gain * (self.log - self.prior)
        return math.exp(min(max(log, -FARTHEST_MEAN), FARTHEST_MEAN))


class Calibration:
    """Fits `confidence` to the committed tokens: recursive maximum likelihood of two logarithms.

    Their cross information is left out, because promises are no better with it.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        self.prior = prior = prior or Prior()
        self.confidence = prior.confidence
        self.num_observed = self.num_best = 0  # choices, and how many were the first candidate
        self._sharpness = Followed(prior.confidence.sharpness, prior.sharpness)
        self._rest = Followed(prior.confidence.rest, prior.rest)
        self._miss = RatioEstimator(prior.confidence.miss, MISS_WEIGHT, HALF_LIFE)
        self.survival = Survival(prior.survival, prior.survival_weight)

    def observe(self, scores: Sequence[float], chosen: int | None) -> None:
        """Learn that the target chose candidate `chosen` after a node with these `scores`. They decrease, are
        finite and in nats; None means another token."""
        if not scores:
            return  # a drafter that proposes nothing says nothing about its scores
        self.num_observed += 1
        self.num_best += chosen == 0
        if len(scores) >= FULL_LIST:
            self._follow(scores, chosen, self.confidence.rest)
        else:
            if chosen is not None and len(scores) > 1:
                self._follow(scores, chosen, 0.0)
            self._miss.add(1.0 if chosen is None else 0.0, 1.0)
        miss = min(max(self._miss.ratio, LEAST_MISS), MOST_MISS)
        self.confidence = Confidence(math.exp(self._sharpness.log), math.exp(self._rest.log), miss)

    def as_prior(self) -> Prior:
        """Return the prior for the pair's next text, updated with this text."""
        sharpness, rest = self.prior.sharpness, self.prior.rest
        confidence = Confidence(
            self._sharpness.mean_after(sharpness), self._rest.mean_after(rest), self.confidence.miss
        )
        return Prior(
            confidence,
            sharpness.after(self._sharpness.learnt),
            rest.after(self._rest.learnt),
            self.survival.mean,
            min(self.survival.weight, KEPT_WEIGHT),
        )

    def _follow(self, scores: Sequence[float], chosen: int | None, rest: float) -> None:
        gradient, information, share = slopes(self.confidence.sharpness, rest, scores, chosen)
        self._sharpness.follow(gradient, information)
        if rest:
            self._rest.follow((chosen is None) - share, share * (1.0 - share))


# The priors before a pair's first text at each temperature, and their updates from text to text.


@dataclass(frozen=True, slots=True)
class PriorTable:
    """Holds priors at some temperatures; the nearest serves any other.

    Scores are logits / temperature + noise, and the draft errs in its logits. So the sharpness per nat of
    logit stays, and a prior's sharpness per nat of score scales with the temperature. Greedy scores count as
    of temperature 1.
    """

    points: tuple[tuple[float, Prior], ...]  # temperatures rising

    def at(self, temperature: float) -> Prior:
        """Return the prior for a text at this temperature, 0 or more."""
        own, prior = self.points[self._nearest(temperature)]
        return _scaled(prior, _unit(temperature) / _unit(own))

    def after(self, temperature: float, calibration: Calibration) -> PriorTable:
        """Return the table updated with a text that began from it at this temperature."""
        place = self._nearest(temperature)
        own, _ = self.points[place]
        prior = _scaled(calibration.as_prior(), _unit(own) / _unit(temperature))
        return replace(self, points=(*self.points[:place], (own, prior), *self.points[place + 1 :]))

    def _nearest(self, temperature: float) -> int:
        return min(range(len(self.points)), key=lambda place: abs(self.points[place][0] - temperature))


def _unit(temperature: float) -> float:
    return temperature or 1.0


def _scaled(prior: Prior, factor: float) -> Prior:
    if factor == 1.0:
        return prior
    confidence = replace(prior.confidence, sharpness=prior.confidence.sharpness * factor)
    return replace(prior, confidence=confidence)


def _point(sharpness: float, rest: float, spread: float) -> Prior:
    """Return a fitted prior for any pair; the doubt covers the difference between pairs."""
    return Prior(Confidence(sharpness, rest, miss=0.01), BetaPrior(spread, 0.5), BetaPrior(0.7, 0.7))


SHIPPED: Final = PriorTable(
    (
        (0.0, _point(4.56, 0.87, spread=0.4)),
        (0.4, _point(1.63, 1.03, spread=0.15)),
        (0.8, _point(2.57, 0.94, spread=0.1)),
        (1.2, _point(3.00, 1.11, spread=0.1)),
    )
)
"""Fitted on the demo pair: 69 texts of 128 tokens at each temperature, prompts outside all reported figures.

    forerun fit FOLDER/*.jsonl     # recordings made by `forerun record`

The doubt is chosen, not fitted: another pair's sharpness may well be half or twice as large. `miss` was
measured with top-p 0.9 at temperature 0.8: it occurred in 16 of the 1,307 lists that top-p cut short.
"""


class Beliefs:
    """Keeps a device's priors for its pair: each text begins with what earlier texts taught.

    Filters (top-k, top-p, min-p) change what a score means, so texts with and without filters are kept apart.
    """

    def __init__(self, table: PriorTable = SHIPPED) -> None:
        self._tables = dict.fromkeys((False, True), table)

    def before(self, sampling: SamplingParams) -> Prior:
        """Return the prior for a new text."""
        return self._tables[_has_filters(sampling)].at(sampling.temperature)

    def learn(self, sampling: SamplingParams, calibration: Calibration) -> None:
        """Learn from a finished text that began with `before(sampling)`."""
        has_filters = _has_filters(sampling)
        self._tables[has_filters] = self._tables[has_filters].after(sampling.temperature, calibration)


def _has_filters(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
