"""The outlook follows from what was measured."""

from dataclasses import replace

import pytest

from forerun.doctor.device import Level
from forerun.doctor.draft import MeasuredPair
from forerun.doctor.examine import WORTH_IT, SpeedOutlook, check_outlook, in_words, look_ahead, row_share
from tests import wording

GOOD = MeasuredPair(rtt=0.02, step_time=0.03, draft_time=0.005, acceptance=0.8)


def test_nothing_is_guessed() -> None:
    finding = check_outlook(MeasuredPair(0.02, None, 0.005, None))
    assert finding.level is Level.SKIP
    wording.keep(finding.words)


@pytest.mark.parametrize(
    ("rtt", "acceptance", "ms"),
    [
        (10, 0.7, 13.8),
        (60, 0.7, 20.2),
        (200, 0.7, 28.6),
        (10, 0.85, 10.2),
        (60, 0.85, 14.5),
        (200, 0.85, 22.9),
    ],
)
def test_the_formula_is_near_what_a_simulated_tree_reaches(rtt: float, acceptance: float, ms: float) -> None:
    """Milliseconds a token of trees ahead, at a target step of 30 ms and a draft step of 5 ms."""
    outlook = look_ahead(MeasuredPair(rtt / 1e3, 0.030, 0.005, acceptance))
    assert 30.0 / outlook.speedup == pytest.approx(ms, rel=0.13)


def test_a_good_draft_pays_up_to_some_distance() -> None:
    break_even = look_ahead(GOOD).break_even
    assert break_even is not None
    assert look_ahead(replace(GOOD, rtt=break_even)).speedup == pytest.approx(WORTH_IT)
    assert look_ahead(replace(GOOD, acceptance=1.0)).pays_everywhere


def test_a_draft_as_slow_as_the_target_pays_nowhere() -> None:
    assert look_ahead(replace(GOOD, draft_time=0.2, acceptance=0.1)) == SpeedOutlook(1.0, None)


def test_a_verifier_whose_rows_are_dear_is_told_of_before_it_is_tried() -> None:
    dear = row_share({1: 0.041, 2: 0.082, 8: 0.328})
    assert dear == pytest.approx(1.0)
    assert look_ahead(replace(GOOD, row_share=dear)).speedup < 1.01


def test_where_drafting_pays_is_told() -> None:
    for outlook in (SpeedOutlook(1.74, 0.31), SpeedOutlook(3.0, None, True), SpeedOutlook(1.0, None)):
        wording.keep(in_words(GOOD, outlook))
