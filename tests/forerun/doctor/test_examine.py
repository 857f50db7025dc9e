"""All checks together: what a person says beats what was measured."""

from __future__ import annotations

from forerun.doctor.draft import Told
from forerun.doctor.examine import Given, measured
from forerun.doctor.link import LinkFound
from forerun.doctor.outlook import Measured

TOLD = Told(
    {"steps": {"step_ms": 5.0}, "rank": {"step_ms": 6.0, "right": 24, "of": 32}}, plain={"step_ms": 30.0}
)
LINK = LinkFound("a:1", (), 0.04)


def test_what_was_measured_is_used() -> None:
    assert measured(TOLD, LINK, Given()) == Measured(0.04, 0.03, 0.005, 0.75)
    assert measured(Told(), None, Given()) == Measured(None, None, None, None)


def test_a_persons_word_comes_first() -> None:
    given = Given(rtt=0.0, step_time=0.02, draft_time=0.001, acceptance=0.5)
    assert measured(TOLD, LINK, given) == Measured(0.0, 0.02, 0.001, 0.5)
