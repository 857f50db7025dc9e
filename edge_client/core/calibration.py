"""From a drafter's scores to the chance that each candidate is the target's choice, learnt on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

from common.estimators import RatioEstimator
from edge_client.core.confidence import LEAST_MISS, MOST_MISS, Confidence, Prior

MIN_LOGPROB = -16.0  # nats; the least that one byte on the wire can say

LEAST_SHARPNESS, MOST_SHARPNESS = math.log(0.25), math.log(16.0)
"""From a draft that knows next to nothing to one that errs in the last digits only."""

HALF_LIFE = 200.0  # observations; a text changes its kind within hundreds of tokens
FADE = 0.5 ** (1 / HALF_LIFE)
LONGEST_STEP = 0.25  # of log sharpness per observation: a surprise to a sure draft has next to no information
NEGLIGIBLE = -700.0  # nats; exp of less underflows
MISS_WEIGHT = 25.0  # observations that the prior's miss counts as


def promised(confidence: Confidence, scores: Sequence[float]) -> list[float]:
    """Log-probabilities in nats, one per candidate; `scores` decreasing, in nats."""
    if not scores:
        return []
    sharpness, best = confidence.sharpness, scores[0]
    scaled = [sharpness * (score - best) for score in scores]
    scale = math.log(1.0 - confidence.miss) - math.log(sum(map(math.exp, scaled)))
    logprobs = [z + scale for z in scaled]
    if min(logprobs) > MIN_LOGPROB:
        return logprobs
    return [max(MIN_LOGPROB, logprob) for logprob in logprobs]


class Calibration:
    """Keeps `confidence` true to what was committed: recursive maximum likelihood of log sharpness.

    Each observation moves it by gradient / information (Amari's natural gradient; for a softmax the Fisher
    information is the variance of the scaled scores). The information is summed with fading, half per
    `HALF_LIFE` observations; what fades is given back to the prior, so that nothing is for ever.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        prior = prior or Prior()
        self.confidence = prior.confidence
        self.num_observed = 0
        self._prior = self._log_sharpness = math.log(prior.confidence.sharpness)
        self._prior_information = self._information = prior.spread**-2
        self._miss = RatioEstimator(prior.confidence.miss, MISS_WEIGHT, HALF_LIFE)

    def observe(self, scores: Sequence[float], chosen: int | None) -> None:
        """After a node with these `scores` (decreasing, finite, nats) the target chose candidate `chosen`, or
        none of them (None)."""
        if not scores:
            return  # a drafter that proposes nothing says nothing about its scores
        self.num_observed += 1
        if chosen is not None and len(scores) > 1:
            self._follow(scores, chosen)
        self._miss.add(1.0 if chosen is None else 0.0, 1.0)
        miss = min(max(self._miss.ratio, LEAST_MISS), MOST_MISS)
        self.confidence = Confidence(math.exp(self._log_sharpness), miss)

    def _follow(self, scores: Sequence[float], chosen: int) -> None:
        """One step; in the scaled scores z the gradient is z[chosen] - mean and the information variance."""
        sharpness, best = self.confidence.sharpness, scores[0]
        scaled = [sharpness * (score - best) for score in scores]
        weights = [math.exp(z if z > NEGLIGIBLE else NEGLIGIBLE) for z in scaled]
        total = sum(weights)
        products = list(map(mul, weights, scaled))
        mean = sum(products) / total
        squares = sum(map(mul, products, scaled)) / total
        lost = (1.0 - FADE) * self._prior_information
        self._information = FADE * self._information + lost + max(0.0, squares - mean * mean)
        gradient = scaled[chosen] - mean + lost * (self._prior - self._log_sharpness)
        step = min(max(gradient / self._information, -LONGEST_STEP), LONGEST_STEP)
        self._log_sharpness = min(max(self._log_sharpness + step, LEAST_SHARPNESS), MOST_SHARPNESS)
