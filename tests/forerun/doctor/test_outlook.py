"""The outlook: what it rests on, and that it follows the world that was measured."""

from __future__ import annotations

from dataclasses import replace

from forerun.doctor.finding import Level
from forerun.doctor.outlook import Measured, Outlook, check_outlook, in_words, look_ahead, world_of

GOOD = Measured(rtt=0.02, step_time=0.03, draft_time=0.005, acceptance=0.8)


def test_nothing_is_guessed() -> None:
    finding, outlook = check_outlook(Measured(0.02, None, 0.005, None))
    assert outlook is None
    assert finding.level is Level.SKIP
    assert finding.words == (
        "not known: the target's step (--step), how often drafts are right (--acceptance)"
    )


def test_a_good_draft_pays_up_to_some_distance() -> None:
    outlook = look_ahead(world_of(GOOD))
    assert outlook.speedup > 1.3
    assert outlook.break_even is not None
    assert outlook.break_even > 0.02


def test_a_draft_as_slow_as_the_target_pays_nowhere() -> None:
    outlook = look_ahead(world_of(replace(GOOD, draft_time=0.2, acceptance=0.1)))
    assert outlook.break_even is None
    assert not outlook.pays_everywhere
    assert outlook.speedup < 1.05


def test_in_words() -> None:
    assert in_words(GOOD, Outlook(1.74, 0.3101)) == (
        "with this link (RTT 20.0 ms), this draft (5.0 ms a step, right 80 % of the time) and this target "
        "(30.0 ms a step) expect 1.7 times the speed of streaming; drafting pays up to an RTT of about 310 ms"
    )
    assert in_words(GOOD, Outlook(3.0, None, True)).endswith("drafting pays even at an RTT of 2 s")
    assert "does not pay here at any RTT" in in_words(GOOD, Outlook(1.0, None))
