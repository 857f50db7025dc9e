"""An engine that is at least as slow as asked: it stands for a larger target."""

from __future__ import annotations

import time
from collections.abc import Callable

from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.engine.grammar import check_grammar, prepare_grammars
from cloud_verifier.engine.stats import Stats, stats_of
from common.errors import UserError
from common.messages import Open


class FlooredEngine:
    """Runs `engine` and sleeps the rest of `floor_s` seconds in every step. A `TargetEngine` itself."""

    def __init__(
        self,
        engine: TargetEngine,
        floor_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0.0 <= floor_s < 60.0:
            raise UserError(f"the step floor is {floor_s} s; it must lie in [0, 60)")
        self._engine = engine
        self._floor_s = floor_s
        self._clock = clock
        self._sleep = sleep

    @property
    def info(self) -> TargetInfo:
        return self._engine.info

    def stats(self) -> Stats:
        """See `ReportsStats`: those of the engine below."""
        return stats_of(self._engine)

    def check_grammar(self, request: Open) -> None:
        """See `ChecksGrammars`."""
        check_grammar(self._engine, request)

    def prepare_grammars(self) -> None:
        """See `PreparesGrammars`."""
        prepare_grammars(self._engine)

    def evaluate(self, plan: StepPlan) -> StepResult:
        """See `TargetEngine.evaluate`."""
        end_at = self._clock() + self._floor_s
        result = self._engine.evaluate(plan)
        rest = end_at - self._clock()
        if rest > 0.0:
            self._sleep(rest)
        return result
