"""An engine whose steps take a least time, to imitate a larger target."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cloud_verifier.core.engine_protocol import StepHints, StepPlan, StepResult, TargetEngine
from cloud_verifier.engine.around import EngineAround


class FlooredEngine(EngineAround):
    """Sleeps in every step until `floor_s` seconds have passed, to stand for a larger target. A hint at a
    share of the layers comes after that share of them."""

    def __init__(
        self,
        engine: TargetEngine,
        floor_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(engine)
        self._floor_s = floor_s
        floored = tuple((rows, max(seconds, floor_s)) for rows, seconds in engine.info.row_times)
        self.info = replace(engine.info, row_times=floored)
        self._clock = clock
        self._sleep = sleep
        self._began_at = 0.0

    def evaluate(self, plan: StepPlan) -> StepResult:
        self._began_at = self._clock()
        result = self._engine.evaluate(plan)
        self._sleep_until(self._began_at + self._floor_s)
        return result

    def listen(self, tell: Callable[[StepHints], None]) -> None:
        def tell_later(hints: StepHints) -> None:
            self._sleep_until(self._began_at + hints.share * self._floor_s)
            tell(hints)

        super().listen(tell_later)

    def _sleep_until(self, at: float) -> None:
        rest = at - self._clock()
        if rest > 0.0:
            self._sleep(rest)
