"""`benchmarks.rivals`: a step is counted and lasts as long as asked; a draft length is read or refused."""

from __future__ import annotations

import pytest

from benchmarks.rivals import Arrivals, Lookahead, TargetMeter
from common.errors import UserError


class Clock:
    """Time that passes when told to, or by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_short_step_lasts_as_long_as_asked_and_a_long_one_is_left_alone() -> None:
    clock = Clock()
    meter = TargetMeter(0.5, clock, clock.sleep)
    for compute_time in (0.125, 0.5, 2.0):
        with meter.step(rows=1):
            clock.now += compute_time
    assert clock.slept == [0.375]
    assert clock.now == 100.0 + 0.5 + 0.5 + 2.0


def test_without_a_floor_nobody_sleeps() -> None:
    clock = Clock()
    with TargetMeter(0.0, clock, clock.sleep).step(rows=3):
        clock.now += 0.25
    assert clock.slept == []


def test_a_step_is_its_tip_and_what_was_proposed() -> None:
    clock = Clock()
    meter, arrivals = TargetMeter(0.0, clock, clock.sleep), Arrivals(clock)
    for rows in (1, 5, 3):
        with meter.step(rows):
            clock.now += 0.25
        arrivals.add([rows, 7])
    record = arrivals.record(meter, drafted=9)
    assert record["tokens"] == [1, 7, 5, 7, 3, 7]
    assert record["arrivals_ms"] == [250.0, 250.0, 500.0, 500.0, 750.0, 750.0]
    assert record["stats"] == {"target_steps": 3, "evaluated": 9, "proposed": 6, "drafted": 9}


def test_a_meter_counts_each_text_from_zero() -> None:
    meter = TargetMeter(0.0)
    with meter.step(rows=4):
        pass
    meter.reset()
    assert (meter.steps, meter.rows) == (0, 0)


@pytest.mark.parametrize(
    ("text", "lookahead"),
    [("8", Lookahead(8)), ("20@0.4", Lookahead(20, 0.4)), ("1@0", Lookahead(1))],
)
def test_a_draft_length_is_read(text: str, lookahead: Lookahead) -> None:
    assert Lookahead.parse(text) == lookahead
    assert Lookahead.parse(str(lookahead)) == lookahead


@pytest.mark.parametrize("text", ["", "0", "-3", "eight", "8@1", "8@-0.1", "8@x", "257", "8@nan"])
def test_a_wrong_draft_length_is_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="a draft length is"):
        Lookahead.parse(text)
