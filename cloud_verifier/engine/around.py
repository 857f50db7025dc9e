"""Defines what engines that wrap another engine have in common."""

from __future__ import annotations

from collections.abc import Callable

from cloud_verifier.core.engine_protocol import (
    GuessPlan,
    GuessResult,
    Stats,
    StepHints,
    StepPlan,
    StepResult,
    TargetEngine,
)
from common.messages import Open


class EngineAround(TargetEngine):
    """Delegates to the `engine` inside every method that it does not define itself."""

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine
        self.info = engine.info

    def evaluate(self, plan: StepPlan) -> StepResult:
        return self._engine.evaluate(plan)

    def stats(self) -> Stats:
        return self._engine.stats()

    def check_grammar(self, request: Open) -> None:
        self._engine.check_grammar(request)

    def prepare_grammars(self) -> None:
        self._engine.prepare_grammars()

    def guess(self, plan: GuessPlan) -> GuessResult:
        return self._engine.guess(plan)

    def listen(self, tell: Callable[[StepHints], None]) -> None:
        self._engine.listen(tell)
