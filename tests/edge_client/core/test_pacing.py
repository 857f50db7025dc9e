"""Laws of how often a verifier is asked: quickly while it is needed, hardly ever while it is not."""

from __future__ import annotations

from edge_client.core.pacing import pause

MIDDLE = 0.5  # of chance: neither shorter nor longer


def test_a_verifier_that_fails_and_is_needed_is_asked_soon_and_never_rarely() -> None:
    assert [pause(failures, 0, MIDDLE) for failures in (1, 2, 3, 4, 5, 900)] == [
        0.25,
        0.5,
        1.0,
        2.0,
        2.0,
        2.0,
    ]


def test_one_that_is_well_and_needed_is_asked_now_and_then() -> None:
    assert pause(0, 0, MIDDLE) == 5.0


def test_one_that_nobody_needs_is_asked_more_and_more_rarely() -> None:
    assert [pause(0, idle, MIDDLE) for idle in (1, 2, 3, 4, 5, 900)] == [
        30.0,
        60.0,
        120.0,
        240.0,
        300.0,
        300.0,
    ]


def test_one_that_fails_and_that_nobody_needs_is_given_up_slowly() -> None:
    assert [pause(failures, 1, MIDDLE) for failures in (1, 3, 5, 900)] == [0.5, 2.0, 8.0, 300.0]


def test_a_day_of_idleness_is_a_few_hundred_questions() -> None:
    now, questions = 0.0, 0
    while now < 86_400.0:
        questions += 1
        now += pause(0, questions, MIDDLE)
    assert questions < 300


def test_devices_do_not_ask_in_step() -> None:
    assert (pause(0, 0, 0.0), pause(0, 0, 1.0)) == (3.75, 6.25)
