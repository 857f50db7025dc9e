"""From a drafter's scores to the chance that each candidate is the target's choice, learnt on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

from common.estimators import RatioEstimator
from edge_client.core.confidence import (
    FULL_LIST,
    KEPT_WEIGHT,
    LEAST_MISS,
    MOST_MISS,
    Confidence,
    Guess,
    Prior,
    Survival,
)

MIN_LOGPROB = -16.0  # nats; the least that one byte on the wire can say

FARTHEST = math.log(64.0)
"""From the prior, either way: a draft that knows next to nothing, or errs in the last digits only."""

FARTHEST_MEAN = math.log(1e4)  # of a pair's; however many texts pushed it there

HALF_LIFE = 200.0  # observations; a text changes its kind within hundreds of tokens
FADE = 0.5 ** (1 / HALF_LIFE)
LONGEST_STEP = 0.25  # of a logarithm per observation: a surprise to a sure draft has next to no information
NEGLIGIBLE = -700.0  # nats; exp of less underflows
MISS_WEIGHT = 25.0  # observations that the prior's miss counts as


def promised(confidence: Confidence, scores: Sequence[float]) -> list[float]:
    """Log-probabilities in nats, one per candidate; `scores` decreasing, in nats."""
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


def surprise(confidence: Confidence, scores: Sequence[float], chosen: int | None) -> float:
    """Nats that a choice costs: minus the logarithm of its chance; None is any other token. `scores` as
    `promised` takes them, at least one."""
    logprobs = promised(confidence, scores)
    if chosen is not None:
        return -logprobs[chosen]
    if len(scores) < FULL_LIST:
        return -math.log(max(confidence.miss, LEAST_MISS))
    return -max(MIN_LOGPROB, logprobs[-1] + math.log(confidence.rest))


def slopes(
    sharpness: float, rest: float, scores: Sequence[float], chosen: int | None
) -> tuple[float, float, float]:
    """Of the log-likelihood of a choice: its gradient by log sharpness, the Fisher information of that, and
    the chance promised to all other tokens, which is what their own gradient is made of.

    With the scaled scores z, those of the others being the last candidate's, the gradient is z[chosen] - mean
    and the information the variance.
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
    """The logarithm of a number, kept where the observations are likeliest.

    Each observation moves it by gradient / information (Amari's natural gradient). The information is summed
    with fading, half per `HALF_LIFE` observations; what fades is given back to the prior, so that nothing is
    for ever.
    """

    def __init__(self, value: float, guess: Guess) -> None:
        self.log = self.prior = math.log(value)
        self.information = self._prior_information = 1.0 / guess.variance
        self._lost = (1.0 - FADE) * self._prior_information

    def follow(self, gradient: float, information: float) -> None:
        """One observation's, of the log-likelihood by the logarithm."""
        lost = self._lost
        self.information = FADE * self.information + lost + information
        step = (gradient + lost * (self.prior - self.log)) / self.information
        log = self.log + min(max(step, -LONGEST_STEP), LONGEST_STEP)
        self.log = min(max(log, self.prior - FARTHEST), self.prior + FARTHEST)

    @property
    def learnt(self) -> float:
        """Information that the observations brought."""
        return self.information - self._prior_information

    def mean_after(self, guess: Guess) -> float:
        """What the pair's mean is believed to be, now that this text has had its say."""
        log = self.prior + guess.gain * (self.log - self.prior)
        return math.exp(min(max(log, -FARTHEST_MEAN), FARTHEST_MEAN))


class Calibration:
    """Keeps `confidence` true to what was committed: recursive maximum likelihood of two logarithms.

    For a softmax the Fisher information of the log sharpness is the variance of the scaled scores, that of
    the rest's log weight p (1 - p). What the two have in common is left out: with it promises are no better.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        self.prior = prior = prior or Prior()
        self.confidence = prior.confidence
        self.num_observed = 0
        self._sharpness = Followed(prior.confidence.sharpness, prior.sharpness)
        self._rest = Followed(prior.confidence.rest, prior.rest)
        self._miss = RatioEstimator(prior.confidence.miss, MISS_WEIGHT, HALF_LIFE)
        self.survival = Survival(prior.survival, prior.survival_weight)

    def observe(self, scores: Sequence[float], chosen: int | None) -> None:
        """After a node with these `scores` (decreasing, finite, nats) the target chose candidate `chosen`, or
        none of them (None)."""
        if not scores:
            return  # a drafter that proposes nothing says nothing about its scores
        self.num_observed += 1
        if len(scores) >= FULL_LIST:
            self._follow(scores, chosen, self.confidence.rest)
        else:
            if chosen is not None and len(scores) > 1:
                self._follow(scores, chosen, 0.0)
            self._miss.add(1.0 if chosen is None else 0.0, 1.0)
        miss = min(max(self._miss.ratio, LEAST_MISS), MOST_MISS)
        self.confidence = Confidence(math.exp(self._sharpness.log), math.exp(self._rest.log), miss)

    def as_prior(self) -> Prior:
        """What the next text of the same pair may start from: the pair's mean has followed, and is surer."""
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
