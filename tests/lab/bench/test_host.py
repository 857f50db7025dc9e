"""A meter tells the engine's time from the gaps between steps, and a rest from either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetEngine, TargetInfo
from lab.bench.host import Meter
from tests.support.clock import Clock


class Engine(TargetEngine):
    """Takes the times it is given, of its clock."""

    info = TargetInfo("fake", 10, 20, 30, (), b"")

    def __init__(self, clock: Clock, times: Iterator[float]) -> None:
        self.clock, self.times = clock, times

    def evaluate(self, plan: StepPlan) -> StepResult:
        self.clock.now += next(self.times)
        return StepResult((), ())


def test_gaps_lie_between_steps_and_rests_are_none() -> None:
    clock = Clock()
    meter = engine = Meter(Engine(clock, iter((0.008, 0.010, 0.008))), clock, clock)
    engine.evaluate(StepPlan(()))
    clock.now += 0.002
    engine.evaluate(StepPlan(()))
    clock.now += 5.0  # nobody was there
    meter.rest()
    engine.evaluate(StepPlan(()))
    told = meter.take()
    assert told["steps"] == 3
    assert told["step_ms"]["mean"] == pytest.approx(26.0 / 3)
    assert told["engine_cpu_ms"] == pytest.approx(26.0)
    assert told["gap_ms"]["mean"] == pytest.approx(2.0)
    assert told["cycle_ms"]["mean"] == pytest.approx(10.0)
    assert told["wall_ms"] == pytest.approx(5028.0)
