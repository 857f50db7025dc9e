"""Laws of confidence: what the candidates and all other tokens are given sums to 1, and fits one byte."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from edge_client.core.calibration import MIN_LOGPROB, promised, surprise
from edge_client.core.confidence import FULL_LIST, LEAST_DOUBT, Confidence, Guess

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


def test_all_other_tokens_are_one_more_candidate_beside_the_last_of_a_full_list() -> None:
    logprobs = promised(Confidence(sharpness=1.0, rest=2.0), (0.0, 0.0, 0.0, 0.0, -math.log(2.0)))
    assert [math.exp(logprob) for logprob in logprobs] == pytest.approx([2 / 11] * 4 + [1 / 11])
    assert surprise(Confidence(1.0, rest=2.0), (0.0, 0.0, 0.0, 0.0, -math.log(2.0)), None) == pytest.approx(
        -math.log(2 / 11)
    )


def test_where_the_last_candidate_is_far_behind_all_others_are() -> None:
    near, far = ((5.0, 4.0, 3.0, 2.0, last) for last in (1.0, -3.0))
    believed = Confidence(sharpness=1.0)
    assert surprise(believed, far, None) > surprise(believed, near, None) + 3.0


def test_of_a_list_that_a_filter_cut_short_the_miss_is_the_same_whatever_the_scores() -> None:
    believed = Confidence(miss=0.05)
    assert surprise(believed, (3.0, 2.9), None) == surprise(believed, (3.0, -9.0), None)
    assert surprise(believed, (3.0, 2.9), None) == pytest.approx(-math.log(0.05))


@given(scores, st.floats(0.1, 4.0), st.floats(0.0, 0.5), st.floats(0.01, 30.0))
def test_chances_fall_with_the_scores_and_sum_to_one_with_all_others(
    ranked: list[float], sharpness: float, miss: float, rest: float
) -> None:
    confidence = Confidence(sharpness, rest, miss)
    logprobs = promised(confidence, ranked)
    assert logprobs == sorted(logprobs, reverse=True)
    assert all(MIN_LOGPROB <= logprob <= 1e-12 for logprob in logprobs)
    others = miss if len(ranked) < FULL_LIST else math.exp(-surprise(confidence, ranked, None))
    total = sum(map(math.exp, logprobs)) + others
    assert total == pytest.approx(1.0, abs=(len(ranked) + rest) * math.exp(MIN_LOGPROB) + 1e-9)


@pytest.mark.parametrize("sharpness", [0.0, -1.0, math.nan, math.inf])
def test_a_sharpness_that_ranks_nothing_is_refused(sharpness: float) -> None:
    with pytest.raises(UserError, match=f"sharpness is {sharpness}"):
        Confidence(sharpness=sharpness)


@pytest.mark.parametrize("miss", [-0.1, 1.0, math.nan])
def test_a_miss_that_is_no_chance_is_refused(miss: float) -> None:
    with pytest.raises(UserError, match=f"miss is {miss}"):
        Confidence(miss=miss)


@pytest.mark.parametrize("rest", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_of_all_others_that_is_none_is_refused(rest: float) -> None:
    with pytest.raises(UserError, match=f"rest is {rest}"):
        Confidence(rest=rest)


# Guesses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, -1.0, math.nan, math.inf])
def test_a_spread_that_is_none_is_refused(spread: float) -> None:
    with pytest.raises(UserError, match=f"spread is {spread}"):
        Guess(spread, 0.0)


@pytest.mark.parametrize("doubt", [-1.0, math.nan, math.inf])
def test_a_doubt_that_is_none_is_refused(doubt: float) -> None:
    with pytest.raises(UserError, match=f"doubt is {doubt}"):
        Guess(1.0, doubt)


def test_a_text_that_told_everything_leaves_the_spread_between_texts_alone() -> None:
    """Two numbers around one mean, both known: of the mean half is known from the first."""
    assert Guess(spread=0.3, doubt=0.3).after(1e12).doubt == pytest.approx(0.3 / math.sqrt(2))


def test_a_text_that_told_nothing_leaves_the_doubt_as_it_was() -> None:
    assert Guess(0.3, 0.5).after(0.0) == Guess(0.3, 0.5)


def test_doubt_never_ends_but_what_was_known_stays_known() -> None:
    guess = Guess(spread=0.3, doubt=0.5)
    for _ in range(1000):
        guess = guess.after(100.0)
    assert guess.doubt == pytest.approx(LEAST_DOUBT * 0.3)
    assert Guess(0.3, 0.0).after(100.0).doubt == 0.0
