"""Laws of reliability: promises that are kept lie on the diagonal, and a signal that is ignored shows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from common.calibration import Confidence, Prior
from training.fitting import Observation, Text
from training.reliability import (
    DEPTH,
    ENTROPY,
    MARGIN,
    MOST_DEPTH,
    RANK,
    Reliability,
    by_chance,
    by_signal,
    fixed_promises,
    learnt_promises,
    plot_reliability,
    wilson,
)

EVEN = (0.0, 0.0)
HALF = Confidence(sharpness=1.0, miss=0.0)


def test_wilsons_interval_is_that_of_the_books() -> None:
    """Newcombe 1998, table I: 81 of 263, and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20)[1] == pytest.approx(1.0)


def test_candidates_that_are_right_as_often_as_promised_have_no_residual() -> None:
    text: Text = [Observation(EVEN, place % 2) for place in range(40)]
    (found,) = by_chance(fixed_promises([text], HALF))
    assert found.promised == pytest.approx(0.5)
    assert (found.observed, found.count) == (0.5, 80)
    assert [each.observed for each in by_signal(fixed_promises([text], HALF), RANK)] == [0.5, 0.5]


def test_a_signal_that_the_promise_ignores_shows_in_its_panel() -> None:
    """Always right where the lead is large; the softmax of sharpness near 0 promises a half everywhere."""
    text: Text = [Observation(EVEN, 1), Observation((9.0, 0.0), 0)] * 50
    promises = fixed_promises([text], Confidence(sharpness=1e-9, miss=0.0))
    by_lead = by_signal(promises, MARGIN)
    assert (by_lead[0].at, by_lead[0].observed) == (0.0, 0.0)
    assert (by_lead[-1].at, by_lead[-1].observed) == (9.0, 1.0)
    assert by_signal(promises, ENTROPY)[-1].at == pytest.approx(math.log(2))
    assert by_signal(promises, ENTROPY)[-1].observed == 0.0


def test_depth_counts_first_candidates_that_were_right_one_after_the_other() -> None:
    text: Text = [Observation(EVEN, 0)] * (MOST_DEPTH + 2) + [Observation(EVEN, 1), Observation(EVEN, 0)]
    found = by_signal(fixed_promises([text], HALF), DEPTH)
    assert [each.at for each in found] == list(range(1, MOST_DEPTH + 1))
    assert [each.count for each in found] == [2, *[1] * (MOST_DEPTH - 2), 4]


def test_all_that_was_promised_is_in_a_bin_and_a_lone_candidate_has_no_margin() -> None:
    text: Text = [Observation((1.0,), 0), Observation((2.0, 1.0, 0.0), None)] * 7
    promises = fixed_promises([text], Confidence())
    assert sum(each.count for each in by_chance(promises)) == len(promises) == 28
    assert sum(each.count for each in by_signal(promises, MARGIN)) == 7
    assert sum(each.count for each in by_signal(promises, ENTROPY)) == 14


def test_what_is_learnt_on_the_way_is_promised_before_it_is_learnt() -> None:
    text: Text = [Observation((1.0, 0.0), 1)] * 30
    fixed = fixed_promises([text], Prior().confidence)
    found = learnt_promises([text, text], Prior())
    assert found[0].chance == found[60].chance == fixed[0].chance  # every text begins anew
    assert found[58].chance < 0.7 * fixed[58].chance


# The picture

TEXT: Text = [Observation((3.0, 2.0, 1.0, 0.5, -place), place % 5) for place in range(40)]


@pytest.mark.slow
def test_two_drawings_of_the_same_promises_are_the_same_file(tmp_path: Path) -> None:
    """Also where all are kept or all are broken."""
    pytest.importorskip("matplotlib")
    right: Text = [Observation((9.0, 0.0), 0)] * 10
    wrong: Text = [Observation((9.0,), None)] * 10
    rows = [Reliability(0.0, [TEXT], Prior()), Reliability(0.8, [right, wrong], Prior())]
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    plot_reliability(rows, first)
    plot_reliability(rows, second)
    assert first.read_bytes() == second.read_bytes()
