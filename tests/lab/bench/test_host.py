"""A meter tells the engine's time from the gaps between steps, and a rest from either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from common.messages import Close, Open
from common.sampling import SamplingParams
from lab.bench.formula import FINGERPRINT, FormulaEngine
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


def test_a_metered_scheduler_behaves_as_the_scheduler() -> None:
    clock = Clock()
    engine = FormulaEngine(64)
    meter = Meter(engine, clock, clock)
    plain = VerifyScheduler(engine.info)
    scheduler: VerifyScheduler = meter.scheduler(plain)
    scheduler.on_open(1, Open((1, 2), SamplingParams(max_tokens=4), FINGERPRINT), 0.0)
    plan = scheduler.next_step(0.0)
    assert plan is not None
    scheduler.on_step_done(engine.evaluate(plan), 0.0)
    scheduler.on_close(1, Close(), 0.0)
    assert scheduler.next_step(0.0) is None
    assert scheduler.idle
    assert scheduler.sessions is plain.sessions
