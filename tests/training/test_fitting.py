"""Laws of fitting: what texts were drawn from is found, and held-out texts are never fitted on."""

import math
from dataclasses import astuple

import numpy as np
import pytest

from common.calibration import SHIPPED, Confidence, PriorTable, promised
from schemes.policies.pacer import StopScorer
from simulator.recordings import RecordedText, Recording, RecordingHeader
from training.fitting import (
    Observation,
    Text,
    best_confidence,
    best_spread,
    fit,
    fit_scorer,
    fixed,
    held_against,
    kept,
    learnt,
    scored,
)

TRUTH = Confidence(sharpness=2.0, rest=1.5, miss=0.1)


def text_of(truth: Confidence, length: int, rng: np.random.Generator, width: int = 5) -> Text:
    """Choices drawn from the chances that `truth` promises."""
    text: Text = []
    for _ in range(length):
        scores = tuple((-np.sort(-rng.normal(0.0, 1.0, size=width))).tolist())
        ends = np.cumsum([math.exp(logprob) for logprob in promised(truth, scores)])
        place = int(np.searchsorted(ends, rng.random()))
        text.append(Observation(scores, place if place < width else None))
    return text


def texts_of(truth: Confidence, num: int, seed: int, spread: float = 0.0, length: int = 60) -> list[Text]:
    """`spread`: of log sharpness between them."""
    rng = np.random.default_rng(seed)
    return [
        text_of(
            Confidence(truth.sharpness * math.exp(spread * rng.normal()), truth.rest, truth.miss), length, rng
        )
        for _ in range(num)
    ]


def recorded(texts: list[Text], temperature: float) -> Recording:
    return Recording(
        RecordingHeader("target", "draft", temperature, 1),
        tuple(
            RecordedText(
                3,
                tuple(99 if seen.chosen is None else seen.chosen for seen in text),
                tuple(tuple(range(len(seen.scores))) for seen in text),
                tuple(seen.scores for seen in text),
                tuple(None if seen.chosen is None else seen.chosen + 1 for seen in text),
            )
            for text in texts
        ),
    )


def test_the_confidence_that_texts_were_drawn_from_is_found_from_afar() -> None:
    texts = texts_of(TRUTH, 40, seed=1)
    found, information = best_confidence(texts, Confidence(sharpness=0.2, rest=20.0))
    assert math.log(found.sharpness / 2.0) == pytest.approx(0.0, abs=3 / math.sqrt(information[0]))
    assert math.log(found.rest / 1.5) == pytest.approx(0.0, abs=3 / math.sqrt(information[1]))


def test_the_miss_is_that_of_lists_that_were_cut_short() -> None:
    rng = np.random.default_rng(3)
    texts = [text_of(TRUTH, 100, rng, width=3) for _ in range(20)]
    found, _ = best_confidence(texts, Confidence(rest=0.7, miss=0.01))
    assert found.miss == pytest.approx(0.1, abs=0.02)
    assert found.rest == 0.7  # no full list told of it


def test_texts_that_differ_have_a_wider_spread_than_texts_that_do_not() -> None:
    alike, unlike = (texts_of(TRUTH, 24, seed=4, spread=spread, length=100) for spread in (0.0, 0.7))
    assert best_spread(alike, TRUTH) == pytest.approx(0.1)
    assert best_spread(unlike, TRUTH) >= 0.4


def test_a_fit_is_worth_more_than_the_softmax_and_than_a_prior_that_is_wrong() -> None:
    prior = fit(texts_of(Confidence(5.0, 1.5), 24, seed=6), 0.8)
    surprise = held_against(texts_of(Confidence(5.0, 1.5), 8, seed=7), 0.8, prior)
    assert surprise.hindsight <= surprise.fitted < surprise.shipped < surprise.plain
    assert surprise.learnt_from_fitted < surprise.learnt_from_shipped
    assert surprise.kept < surprise.learnt_from_shipped


def test_what_was_learnt_on_one_text_serves_the_next() -> None:
    texts = texts_of(Confidence(5.0, 1.5), 8, seed=8, length=30)
    assert kept(texts[:1], 0.8, SHIPPED) == learnt(texts[:1], SHIPPED.at(0.8))
    assert kept(texts, 0.8, SHIPPED) < learnt(texts, SHIPPED.at(0.8))
    assert kept(texts, 0.4, PriorTable(((0.8, SHIPPED.at(0.8)),))) < learnt(texts, SHIPPED.at(0.4))


def test_a_pair_that_never_differs_is_fitted_all_the_same() -> None:
    texts: list[Text] = [[Observation((5.0, 4.0, 3.0, 2.0, 1.0), 0)] * 20 for _ in range(8)]
    prior = fit(texts, 0.0)
    assert all(map(math.isfinite, astuple(prior.confidence)))
    assert fixed(texts, prior.confidence) < fixed(texts, SHIPPED.at(0.0).confidence) < 0.1
    assert prior.confidence.rest > 0.1  # nothing was missed here, but something may be


def test_what_the_promise_does_not_say_is_learned() -> None:
    """A draft that is seldom right after three right tokens in a row."""
    rng = np.random.default_rng(14)

    def tiring(length: int) -> Text:
        text: Text = []
        run = 0
        for seen in text_of(TRUTH, length, rng):
            right = seen.chosen == 0 and (run < 3 or rng.random() < 0.3)
            text.append(Observation(seen.scores, 0 if right else 1))
            run = run + 1 if right else 0
        return text

    fitted, others = ([tiring(80) for _ in range(30)] for _ in range(2))
    prior = fit(fitted, 0.8)
    scorer = fit_scorer(fitted, prior)
    assert scorer.place < 0.0
    assert scored(others, prior, scorer) < 0.99 * scored(others, prior, StopScorer())
