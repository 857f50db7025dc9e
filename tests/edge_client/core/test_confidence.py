"""Laws of confidence: what the candidates are given sums to what is not missed, and fits one byte."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from edge_client.core.confidence import MIN_LOGPROB, Confidence

scores = st.lists(st.floats(-8.0, 8.0), min_size=1, max_size=8).map(lambda s: sorted(s, reverse=True))


def test_no_candidates_have_no_confidence() -> None:
    assert Confidence().logprobs(()) == []


def test_equal_scores_share_what_is_not_missed() -> None:
    assert Confidence(miss=0.2).logprobs((3.0, 3.0)) == pytest.approx([math.log(0.4)] * 2)


def test_a_margin_is_worth_its_sharpness() -> None:
    first, second = Confidence(sharpness=0.5, miss=0.0).logprobs((4.0, 1.0))
    assert first - second == pytest.approx(1.5)
    assert math.exp(first) + math.exp(second) == pytest.approx(1.0)


def test_a_single_candidate_is_missed_as_often_as_configured() -> None:
    assert Confidence(miss=0.0).logprobs((5.0,)) == [0.0]
    assert Confidence(miss=0.02).logprobs((5.0,)) == pytest.approx([math.log(0.98)])


def test_no_candidate_is_below_what_a_byte_can_say() -> None:
    assert Confidence().logprobs((0.0, -1000.0, -math.inf))[1:] == [MIN_LOGPROB, MIN_LOGPROB]


@given(scores, st.floats(0.1, 4.0), st.floats(0.0, 0.5))
def test_chances_fall_with_the_scores_and_sum_to_what_is_not_missed(
    ranked: list[float], sharpness: float, miss: float
) -> None:
    logprobs = Confidence(sharpness, miss).logprobs(ranked)
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
