"""Estimators follow their published formulas, digit for digit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import LocalError
from common.estimators import LinearTimeEstimator, RatioEstimator, RttEstimator, WidthTimes
from tests import wording

TIMES = st.floats(0, 10)


def test_rtt_starts_as_rfc_9002_says() -> None:
    rtt = RttEstimator()
    assert (rtt.smoothed_rtt, rtt.rtt_variance, rtt.min_rtt, rtt.latest_rtt) == (0.333, 0.1665, 0.0, 0.0)


def test_rtt_follows_rfc_9002_5_3() -> None:
    rtt = RttEstimator()
    rtt.sample(0.100)
    assert (rtt.latest_rtt, rtt.min_rtt, rtt.smoothed_rtt, rtt.rtt_variance) == (0.1, 0.1, 0.1, 0.05)
    rtt.sample(0.180)
    assert rtt.rtt_variance == pytest.approx(0.75 * 0.05 + 0.25 * 0.08)
    assert rtt.smoothed_rtt == pytest.approx(0.875 * 0.1 + 0.125 * 0.18)
    assert (rtt.latest_rtt, rtt.min_rtt, rtt.num_samples) == (0.18, 0.1, 2)


@given(TIMES, TIMES, TIMES)
def test_the_hold_is_not_the_networks(network: float, hold: float, other: float) -> None:
    with_hold, without = RttEstimator(), RttEstimator()
    for sample in (network, other):
        with_hold.sample(sample + hold, hold)
        without.sample(sample)
    assert with_hold.smoothed_rtt == pytest.approx(without.smoothed_rtt, abs=1e-12)
    assert with_hold.min_rtt <= with_hold.latest_rtt + 1e-12


@pytest.mark.parametrize(("hold", "latest"), [(5.0, 0.0), (-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_a_peer_that_lies_about_its_hold_gives_a_sane_rtt(hold: float, latest: float) -> None:
    rtt = RttEstimator()
    rtt.sample(1.0, hold)
    assert rtt.smoothed_rtt == latest


def test_rtt_refuses_what_no_clock_says() -> None:
    for elapsed in (-0.1, math.nan, math.inf):
        with wording.raises(LocalError):
            RttEstimator().sample(elapsed)


def test_a_ratio_is_of_sums() -> None:
    """1 of 1 and 0 of 9 are 1 of 10, not the mean of 1 and 0."""
    ratio = RatioEstimator(prior=0.5, prior_weight=1e-9, half_life=1e12)
    ratio.add(1, 1)
    ratio.add(0, 9)
    assert ratio.ratio == pytest.approx(0.1, rel=1e-6)


def test_a_ratio_begins_with_its_prior_and_leaves_it() -> None:
    ratio = RatioEstimator(prior=0.7, prior_weight=10, half_life=50)
    assert (ratio.ratio, ratio.weight) == (0.7, 10)
    for _ in range(500):
        ratio.add(1, 4)
    assert ratio.ratio == pytest.approx(0.25, abs=1e-6)


def test_evidence_halves_in_a_half_life() -> None:
    ratio = RatioEstimator(prior=1.0, prior_weight=16, half_life=32)
    ratio.add(0, 32)
    assert ratio.ratio * ratio.weight == pytest.approx(8)


def test_many_small_samples_are_one_large_one() -> None:
    small, large = RatioEstimator(0.5), RatioEstimator(0.5)
    for _ in range(8):
        small.add(0.75, 1)
    large.add(6, 8)
    assert small.ratio == pytest.approx(large.ratio, rel=1e-12)
    assert small.weight == pytest.approx(large.weight, rel=1e-12)


def test_times_learn_a_line() -> None:
    times = LinearTimeEstimator()
    for step in range(200):
        width = 1 + step * 7 % 13
        times.sample(width, 0.012 + 0.0009 * width)
    assert times.predict(0) == pytest.approx(0.012, rel=1e-6)
    assert times.per_row == pytest.approx(0.0009, rel=1e-6)


def test_with_one_width_the_slope_stays_and_the_level_is_learnt() -> None:
    times = LinearTimeEstimator(fixed=0.005, per_row=0.0003)
    for _ in range(100):
        times.sample(8, 0.020)
    assert times.predict(8) == pytest.approx(0.020)
    assert times.per_row == pytest.approx(0.0003)


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 2)), max_size=40), st.integers(0, 600))
def test_predictions_are_never_negative_and_never_fall_with_width(
    samples: list[tuple[int, float]], width: int
) -> None:
    times = LinearTimeEstimator()
    for rows, duration in samples:
        times.sample(rows, duration)
    assert -1e-12 <= times.predict(width) <= times.predict(width + 1) < math.inf


Q8_0 = {1: 0.023, 2: 0.085, 3: 0.106, 4: 0.124, 8: 0.135}
"""Seconds of a draft step by rows that no line fits: a 0.5B model in q8_0 on one processor core."""


def test_a_table_is_no_line() -> None:
    times = WidthTimes({1: 0.005, 2: 0.0053})
    times.measured(Q8_0)
    assert [times.predict(rows) for rows in Q8_0] == pytest.approx(list(Q8_0.values()))
    assert times.predict(6) == pytest.approx(0.1295)
    assert times.predict(0) == 0.0


def test_each_width_is_learnt_for_itself() -> None:
    times = WidthTimes({1: 0.005, 2: 0.0053})
    for _ in range(20):
        for rows in (1, 2, 4):
            times.sample(rows, Q8_0[rows])
    assert times.predict(1) == pytest.approx(Q8_0[1], rel=0.3)
    assert times.predict(2) == pytest.approx(Q8_0[2], rel=0.3)
    assert times.predict(2) < times.predict(3) < times.predict(4)


def test_a_width_that_once_took_long_is_tried_again() -> None:
    """One hiccup must not shut a width out for ever, as nothing else tells that it was one."""
    times = WidthTimes({1: 0.010, 2: 0.011}, half_life=20)
    times.sample(2, 1.0)
    once = times.predict(2)
    for _ in range(200):
        times.sample(1, 0.010)
    assert once > 0.1
    assert times.predict(2) == pytest.approx(0.011, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 40)), max_size=40), st.integers(0, 6000))
def test_predicted_step_times_are_finite_and_never_negative(
    samples: list[tuple[int, float]], width: int
) -> None:
    times = WidthTimes(Q8_0)
    for rows, duration in samples:
        times.sample(rows, duration)
    assert 0 <= times.predict(width) < math.inf


def test_tables_refuse_nonsense() -> None:
    for shape in ({}, {0: 0.1}, {1: 0.0}, {1: math.nan}):
        with pytest.raises(LocalError):
            WidthTimes(shape)
