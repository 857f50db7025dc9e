"""Fits the prior and the learned stop to recordings, and measures both on texts that were held out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.calibration import (
    FULL_LIST,
    LEAST_MISS,
    MIN_LOGPROB,
    MISS_WEIGHT,
    MOST_MISS,
    SHIPPED,
    BetaPrior,
    Calibration,
    Confidence,
    Prior,
    PriorTable,
    promised,
    slopes,
)
from common.errors import UserError
from schemes.policies.pacer import StopScorer, features
from simulator.recordings import Recording

FloatArray = NDArray[np.float64]

HELD_OUT_EVERY = 4  # of the texts the fourth, the eighth and so on are not fitted on
LEAST_TEXTS = 8  # fewer say nothing about what changes from text to text

SPREADS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)
"""Of log sharpness between texts; finer steps change the nats by less than a thousandth."""

REST_SPREAD = 0.7
"""Not fitted: 0.3 and 1 are as good on the demo pair; one text sees few choices outside the candidates."""

START_WEIGHT = 2.0
"""Information that a fit's start counts with, that of a logarithm known up to 0.7: texts in which nothing was
missed shall not say that nothing ever is."""
NEXT_TO_NOTHING = 1e-6

CLOSE = 1e-5  # steps of a logarithm; where the fit stops
MOST_ROUNDS = 200
LONGEST_STEP = 0.5
FARTHEST = math.log(1e4)


@dataclass(frozen=True, slots=True)
class Observation:
    """Holds the draft's output at one position, and which candidate the target chose (None: none)."""

    scores: tuple[float, ...]  # nats, not rising, at least one
    chosen: int | None  # from 0


Text = list[Observation]


@dataclass(frozen=True, slots=True)
class TextSplit:
    """Holds all texts of one temperature, in two parts."""

    temperature: float
    fitted: list[Text]
    held_out: list[Text]


@dataclass(frozen=True, slots=True)
class LogLoss:
    """Holds mean nats per token of the held-out texts."""

    plain: float  # sharpness 1: the softmax as it is
    shipped: float  # the shipped prior, never learning
    fitted: float  # the fitted prior, never learning
    learnt_from_shipped: float  # every text learns on its way, from the shipped prior
    learnt_from_fitted: float
    kept: float  # as learnt_from_shipped, and each text begins with what those before it taught
    hindsight: float  # the one confidence that fits these very texts best


def surprise(confidence: Confidence, scores: Sequence[float], chosen: int | None) -> float:
    """Return the nats that a choice costs: minus the logarithm of its chance. None is any other token.
    `scores` must not be empty."""
    logprobs = promised(confidence, scores)
    if chosen is not None:
        return -logprobs[chosen]
    if len(scores) < FULL_LIST:
        return -math.log(max(confidence.miss, LEAST_MISS))
    return -max(MIN_LOGPROB, logprobs[-1] + math.log(confidence.rest))


def split(recordings: Iterable[Recording]) -> list[TextSplit]:
    """Split the texts by temperature, rising. Raises `UserError` if a temperature has too few texts."""
    texts: dict[float, list[Text]] = {}
    for recording in recordings:
        texts.setdefault(recording.header.temperature, []).extend(_texts(recording))
    for temperature, own in texts.items():
        if len(own) < LEAST_TEXTS:
            raise UserError(
                f"at temperature {temperature:g} the recordings have {len(own)} texts with candidates; "
                f"a fit needs {LEAST_TEXTS} or more"
            )
    return [
        TextSplit(
            temperature,
            [text for place, text in enumerate(own, 1) if place % HELD_OUT_EVERY],
            own[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY],
        )
        for temperature, own in sorted(texts.items())
    ]


def _texts(recording: Recording) -> list[Text]:
    texts = [
        [
            Observation(scores, None if rank is None else rank - 1)
            for scores, rank in zip(text.scores, text.ranks, strict=True)
            if scores
        ]
        for text in recording.texts
    ]
    return [text for text in texts if text]


# Fitting --------------------------------------------------------------------------------------------------


def fit(texts: Sequence[Text], temperature: float) -> Prior:
    """Fit by maximum likelihood on `texts`, at least one: the best confidence for all, the spread between
    texts with which learning on the way costs least, and the doubt that the fit itself leaves."""
    confidence, information = best_confidence(texts, SHIPPED.at(temperature).confidence)
    spread = best_spread(texts, confidence)
    return Prior(
        confidence,
        BetaPrior(spread, _standard_error(spread, len(texts), information[0])),
        BetaPrior(REST_SPREAD, _standard_error(REST_SPREAD, len(texts), information[1])),
    )


def best_confidence(
    texts: Sequence[Text], start: Confidence, weight: float = START_WEIGHT
) -> tuple[Confidence, tuple[float, float]]:
    """Fit by Fisher scoring; also return the information on log sharpness and on the log of the rest. The
    start counts with the information `weight`, above 0."""
    every = [seen for text in texts for seen in text]
    confidence, information = replace(start, miss=_miss(every, start.miss)), (weight, weight)
    for _ in range(MOST_ROUNDS):
        (slope, known), (rest_slope, rest_known) = _totals(every, confidence)
        information = known + weight, rest_known + weight
        step = (slope + weight * math.log(start.sharpness / confidence.sharpness)) / information[0]
        rest_step = (rest_slope + weight * math.log(start.rest / confidence.rest)) / information[1]
        sharpness, rest = _moved(confidence.sharpness, step), _moved(confidence.rest, rest_step)
        confidence = Confidence(sharpness, rest, confidence.miss)
        if max(abs(step), abs(rest_step)) < CLOSE:
            break
    return confidence, information


def _totals(
    every: Sequence[Observation], confidence: Confidence
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Gradient and information of all, by log sharpness, and by the log of the rest."""
    gradient = information = rest_gradient = rest_information = 0.0
    for seen in every:
        is_full = len(seen.scores) >= FULL_LIST
        if seen.chosen is None and not is_full:
            continue  # a filter's doing, which scores do not tell
        rest = confidence.rest if is_full else 0.0
        slope, known, share = slopes(confidence.sharpness, rest, seen.scores, seen.chosen)
        gradient += slope
        information += known
        if is_full:
            rest_gradient += (seen.chosen is None) - share
            rest_information += share * (1.0 - share)
    return (gradient, information), (rest_gradient, rest_information)


def _moved(value: float, step: float) -> float:
    log = math.log(value) + min(max(step, -LONGEST_STEP), LONGEST_STEP)
    return math.exp(min(max(log, -FARTHEST), FARTHEST))


def _miss(every: Sequence[Observation], prior: float) -> float:
    """Return the miss of lists that a filter cut short: `prior` without any, else with its online weight."""
    short = [seen for seen in every if len(seen.scores) < FULL_LIST]
    missed = sum(seen.chosen is None for seen in short)
    miss = (missed + MISS_WEIGHT * prior) / (len(short) + MISS_WEIGHT)
    return min(max(miss, LEAST_MISS), MOST_MISS)


def best_spread(texts: Sequence[Text], confidence: Confidence) -> float:
    """Find the spread of log sharpness from text to text, if the pair's mean is known."""
    rest = BetaPrior(REST_SPREAD, 0.0)
    priors = [Prior(confidence, BetaPrior(spread, 0.0), rest) for spread in SPREADS]
    best = min(range(len(SPREADS)), key=lambda place: learnt(texts, priors[place]))
    return SPREADS[best]


def _standard_error(spread: float, num_texts: int, information: float) -> float:
    """Return the error of a mean over texts that deviate by `spread`, with `information` in all."""
    return math.sqrt(spread**2 / num_texts + 1.0 / information)


# The learned stop of the policy `pacer` ---------------------------------------------------------------------


def fit_scorer(texts: Sequence[Text], prior: Prior) -> StopScorer:
    """Fit the scorer by Newton's method; texts begin with `prior`. The start, the promise itself, counts with
    the information `START_WEIGHT`."""
    inputs, right = _decisions(texts, prior)
    start = np.array(astuple(StopScorer()))
    weights = start.copy()
    for _ in range(MOST_ROUNDS):
        chances = 1.0 / (1.0 + np.exp(-(inputs @ weights)))
        gradient = inputs.T @ (right - chances) - START_WEIGHT * (weights - start)
        information = inputs.T @ (inputs * (chances * (1.0 - chances))[:, None])
        step = np.linalg.solve(information + START_WEIGHT * np.eye(len(start)), gradient)
        weights += np.clip(step, -LONGEST_STEP, LONGEST_STEP)
        if np.abs(step).max() < CLOSE:
            break
    return StopScorer(*map(float, weights))


def scored(texts: Sequence[Text], prior: Prior, scorer: StopScorer) -> float:
    """Return mean nats per decision: whether a drafted token is the target's."""
    inputs, right = _decisions(texts, prior)
    logits = inputs @ np.array(astuple(scorer))
    return float(np.logaddexp(0.0, np.where(right > 0, -logits, logits)).mean())


def _decisions(texts: Sequence[Text], prior: Prior) -> tuple[FloatArray, FloatArray]:
    """Return [decisions, 5] features, and [decisions] 1 where the draft's best was the target's.

    A round ends with its first wrong token, since a recording has no drafts below that.
    """
    inputs, right = list[tuple[float, ...]](), list[float]()
    for text in texts:
        calibration, place, path = Calibration(prior), 0, 0.0
        for seen in text:
            promises = promised(calibration.confidence, seen.scores)
            inputs.append(features(promises, place, path))
            right.append(float(seen.chosen == 0))
            place, path = (place + 1, path + promises[0]) if seen.chosen == 0 else (0, 0.0)
            calibration.observe(seen.scores, seen.chosen)
    return np.array(inputs), np.array(right)


# Held against other texts -----------------------------------------------------------------------------------


def held_against(texts: Sequence[Text], temperature: float, prior: Prior) -> LogLoss:
    """Hold `prior` and the others against `texts`, at least one."""
    shipped = SHIPPED.at(temperature)
    best, _ = best_confidence(texts, shipped.confidence, NEXT_TO_NOTHING)
    return LogLoss(
        plain=fixed(texts, replace(shipped.confidence, sharpness=1.0)),
        shipped=fixed(texts, shipped.confidence),
        fitted=fixed(texts, prior.confidence),
        learnt_from_shipped=learnt(texts, shipped),
        learnt_from_fitted=learnt(texts, prior),
        kept=kept(texts, temperature, SHIPPED),
        hindsight=fixed(texts, best),
    )


def fixed(texts: Sequence[Text], confidence: Confidence) -> float:
    """Return mean nats per token with a confidence that learns nothing."""
    return _mean([surprise(confidence, seen.scores, seen.chosen) for text in texts for seen in text])


def learnt(texts: Sequence[Text], prior: Prior) -> float:
    """Return mean nats per token if every text learns on its way and begins anew from `prior`."""
    return _mean([nats for text in texts for nats in surprises(text, Calibration(prior))])


def kept(texts: Sequence[Text], temperature: float, table: PriorTable) -> float:
    """Return mean nats per token if each text begins with what earlier texts taught, as in the edge."""
    told = list[float]()
    for text in texts:
        calibration = Calibration(table.at(temperature))
        told += surprises(text, calibration)
        table = table.after(temperature, calibration)
    return _mean(told)


def surprises(text: Text, calibration: Calibration) -> list[float]:
    """Return each token's nats before the token teaches `calibration`."""
    each_surprise = []
    for seen in text:
        each_surprise.append(surprise(calibration.confidence, seen.scores, seen.chosen))
        calibration.observe(seen.scores, seen.chosen)
    return each_surprise


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
