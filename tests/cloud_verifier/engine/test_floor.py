"""A floored engine answers as the engine it wraps, and no earlier than asked."""

from __future__ import annotations

import pytest

from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
from cloud_verifier.engine.floor import FlooredEngine
from common.errors import UserError

INFO = TargetInfo("fake", 10, 20, 30, (1,), b"")
RESULT = StepResult((), ())


class SlowEngine:
    """Takes `step_time` seconds of its own clock."""

    info = INFO

    def __init__(self, step_time: float) -> None:
        self.now = 100.0
        self.step_time = step_time
        self.slept: list[float] = []

    def evaluate(self, plan: StepPlan) -> StepResult:
        self.now += self.step_time
        return RESULT

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize(("step_time", "slept"), [(0.25, [0.25]), (0.5, []), (2.0, [])])
def test_only_the_rest_of_the_floor_is_slept(step_time: float, slept: list[float]) -> None:
    engine = SlowEngine(step_time)
    floored = FlooredEngine(engine, 0.5, clock=lambda: engine.now, sleep=engine.sleep)
    assert floored.evaluate(StepPlan(())) is RESULT
    assert engine.slept == slept
    assert floored.info is INFO


@pytest.mark.parametrize("floor_s", [-0.1, 60.0, float("nan")])
def test_a_senseless_floor_is_refused(floor_s: float) -> None:
    with pytest.raises(UserError, match=r"step floor is .* \[0, 60\)"):
        FlooredEngine(SlowEngine(0.0), floor_s)
