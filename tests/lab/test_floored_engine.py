"""An engine around another one answers as the engine inside, and hides nothing that it can do."""

from collections.abc import Callable

import pytest

from cloud_verifier.core.engine_protocol import (
    Stats,
    StepHints,
    StepPlan,
    StepResult,
    TargetEngine,
    TargetInfo,
)
from common.errors import UserError
from common.messages import Open
from common.sampling import SamplingParams
from lab.floored_engine import FlooredEngine

INFO = TargetInfo("fake", 10, 20, 30, (1,), b"")
RESULT = StepResult((), ())
HINTS = StepHints(0.5, ())
WITH_GRAMMAR = Open((1,), SamplingParams(grammar="start: /a/"), b"", committed=())


class Plain(TargetEngine):
    """An engine that does steps and nothing else, in `step_time` seconds of its own clock."""

    info = INFO

    def __init__(self, step_time: float = 0.0) -> None:
        self.now = 100.0
        self.step_time = step_time
        self.slept: list[float] = []

    def evaluate(self, plan: StepPlan) -> StepResult:
        self.now += self.step_time
        return RESULT


class Able(Plain):
    """An engine that counts its steps, and refuses all grammars."""

    prepared = 0

    def stats(self) -> Stats:
        return {"graph_steps_total": 2.0}

    def check_grammar(self, request: Open) -> None:
        raise UserError(f"not {request.sampling.grammar}")

    def prepare_grammars(self) -> None:
        self.prepared += 1


@pytest.mark.parametrize(("step_time", "slept"), [(0.25, [0.25]), (0.5, []), (2.0, [])])
def test_only_the_rest_of_the_floor_is_slept(step_time: float, slept: list[float]) -> None:
    engine = Plain(step_time)
    floored = FlooredEngine(engine, 0.5, clock=lambda: engine.now, sleep=engine.slept.append)
    assert floored.evaluate(StepPlan(())) is RESULT
    assert engine.slept == slept
    assert floored.info == INFO


def test_hints_come_after_their_share_of_the_floor() -> None:
    class Hinting(Plain):
        def listen(self, tell: Callable[[StepHints], None]) -> None:
            self.tell = tell

        def evaluate(self, plan: StepPlan) -> StepResult:
            self.now += 0.125
            self.tell(HINTS)
            return super().evaluate(plan)

    engine, told = Hinting(step_time=0.25), list[StepHints]()
    floored = FlooredEngine(engine, 1.0, clock=lambda: engine.now, sleep=engine.slept.append)
    floored.listen(told.append)
    floored.evaluate(StepPlan(()))
    assert told == [HINTS]
    assert engine.slept == [0.375, 0.625]


def test_a_floor_hides_nothing() -> None:
    inside = Able()
    engine = FlooredEngine(inside, 0.0)
    assert engine.stats() == {"graph_steps_total": 2.0}
    with pytest.raises(UserError, match="not start: /a/"):
        engine.check_grammar(WITH_GRAMMAR)
    engine.prepare_grammars()
    assert inside.prepared == 1
