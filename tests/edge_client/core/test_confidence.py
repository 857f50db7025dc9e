"""Laws of confidence: what the candidates are given sums to what is not missed, and fits one byte."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from edge_client.core.calibration import MIN_LOGPROB, Calibration, promised
from edge_client.core.confidence import Confidence, Prior

scores = st.lists(st.floats(-8.0, 8.0), min_size=1, max_size=8).map(lambda s: sorted(s, reverse=True))


def test_no_candidates_have_no_confidence() -> None:
    assert promised(Confidence(), ()) == []


def test_equal_scores_share_what_is_not_missed() -> None:
    assert promised(Confidence(miss=0.2), (3.0, 3.0)) == pytest.approx([math.log(0.4)] * 2)


def test_a_margin_is_worth_its_sharpness() -> None:
    first, second = promised(Confidence(sharpness=0.5, miss=0.0), (4.0, 1.0))
    assert first - second == pytest.approx(1.5)
    assert math.exp(first) + math.exp(second) == pytest.approx(1.0)


def test_a_single_candidate_is_missed_as_often_as_configured() -> None:
    assert promised(Confidence(miss=0.0), (5.0,)) == [0.0]
    assert promised(Confidence(miss=0.02), (5.0,)) == pytest.approx([math.log(0.98)])


def test_no_candidate_is_below_what_a_byte_can_say() -> None:
    assert promised(Confidence(), (0.0, -1000.0, -math.inf))[1:] == [MIN_LOGPROB, MIN_LOGPROB]


@given(scores, st.floats(0.1, 4.0), st.floats(0.0, 0.5))
def test_chances_fall_with_the_scores_and_sum_to_what_is_not_missed(
    ranked: list[float], sharpness: float, miss: float
) -> None:
    logprobs = promised(Confidence(sharpness, miss), ranked)
    assert logprobs == sorted(logprobs, reverse=True)
    assert all(MIN_LOGPROB <= logprob <= 1e-12 for logprob in logprobs)
    total = sum(math.exp(logprob) for logprob in logprobs)
    assert total == pytest.approx(1.0 - miss, abs=len(ranked) * math.exp(MIN_LOGPROB) + 1e-9)


@pytest.mark.parametrize("sharpness", [0.0, -1.0, math.nan, math.inf])
def test_a_sharpness_that_ranks_nothing_is_refused(sharpness: float) -> None:
    with pytest.raises(UserError, match=f"sharpness is {sharpness}"):
        Confidence(sharpness=sharpness)


@pytest.mark.parametrize("miss", [-0.1, 1.0, math.nan])
def test_a_miss_that_is_no_chance_is_refused(miss: float) -> None:
    with pytest.raises(UserError, match=f"miss is {miss}"):
        Confidence(miss=miss)


# Calibration ------------------------------------------------------------------------------------------


def noisy_pairs(error: float, num: int, seed: int) -> list[tuple[list[float], int | None]]:
    """What calibration sees if the target's scores are the draft's plus Gumbel errors of this size: then a
    softmax of sharpness 1 / error is the exact law of the choice."""
    rng = np.random.default_rng(seed)
    pairs: list[tuple[list[float], int | None]] = []
    for _ in range(num):
        scores = -np.sort(-rng.normal(0.0, 2.0, size=5))
        pairs.append((scores.tolist(), int(np.argmax(scores + error * rng.gumbel(size=5)))))
    return pairs


def test_before_the_first_observation_the_prior_speaks() -> None:
    prior = Prior(Confidence(sharpness=1.7, miss=0.1))
    assert Calibration(prior).confidence == prior.confidence


@pytest.mark.parametrize("error", [0.25, 0.5, 1.0, 2.0])
def test_the_sharpness_is_found_wherever_the_prior_stood(error: float) -> None:
    calibration = Calibration(Prior(Confidence(sharpness=3.0)))
    for scores, chosen in noisy_pairs(error, 600, seed=1):
        calibration.observe(scores, chosen)
    assert calibration.confidence.sharpness == pytest.approx(1 / error, rel=0.3)
    assert calibration.num_observed == 600


def test_promises_are_kept_after_calibration() -> None:
    """Of candidates promised a chance of 40-60 %, and of the others, as many are right as was promised."""
    calibration = Calibration()
    hoped, right = np.zeros(5), np.zeros(5)
    for step, (scores, chosen) in enumerate(noisy_pairs(0.8, 4000, seed=2)):
        chances = [math.exp(logprob) for logprob in promised(calibration.confidence, scores)]
        calibration.observe(scores, chosen)
        if step < 200:
            continue
        for place, chance in enumerate(chances):
            bin_ = min(4, int(chance * 5))
            hoped[bin_] += chance
            right[bin_] += place == chosen
    np.testing.assert_allclose(hoped / right, 1.0, atol=0.15)


def test_a_draft_that_is_never_right_loses_its_credit() -> None:
    calibration = Calibration()
    for _ in range(400):
        calibration.observe([4.0, 1.0, 0.0], None)
    assert calibration.confidence.miss > 0.8
    assert all(logprob < math.log(0.2) for logprob in promised(calibration.confidence, [4.0, 1.0, 0.0]))


def test_a_draft_that_changes_is_followed() -> None:
    calibration = Calibration()
    for error in (0.25, 2.0):
        for scores, chosen in noisy_pairs(error, 2000, seed=3):
            calibration.observe(scores, chosen)
        assert calibration.confidence.sharpness == pytest.approx(1 / error, rel=0.35)


def test_observations_without_news_change_nothing_but_the_count() -> None:
    calibration = Calibration()
    calibration.observe([], None)
    assert calibration.num_observed == 0
    calibration.observe([2.0], 0)  # a lone candidate says nothing about gaps
    assert calibration.confidence.sharpness == pytest.approx(Confidence().sharpness)


@given(
    st.lists(
        st.lists(st.floats(-1e45, 1e45), min_size=1, max_size=6).flatmap(
            lambda raw: st.tuples(
                st.just(sorted(raw, reverse=True)), st.none() | st.integers(0, len(raw) - 1)
            )
        ),
        max_size=20,
    )
)
def test_whatever_is_observed_the_confidence_stays_usable(
    pairs: list[tuple[list[float], int | None]],
) -> None:
    calibration = Calibration()
    for scores, chosen in pairs:
        calibration.observe(scores, chosen)
        for logprob in promised(calibration.confidence, [1.0, 0.0, -1.0]):
            assert MIN_LOGPROB <= logprob <= 0.0


@pytest.mark.parametrize("spread", [0.0, -1.0, math.nan, math.inf])
def test_a_spread_that_is_none_is_refused(spread: float) -> None:
    with pytest.raises(UserError, match=f"spread is {spread}"):
        Prior(spread=spread)
