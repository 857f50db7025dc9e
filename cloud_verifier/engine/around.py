"""Defines optional methods of engines, and engines that wrap another engine.

An engine may define five methods. `stats()` returns its figures. `check_grammar(request)` raises `UserError`
or `PeerError` if the engine cannot follow the session's grammar. `prepare_grammars()` prepares what the first
grammar needs. Each runs in another thread than `evaluate` and must not wait for `evaluate`. `guess(plan)`
runs in the thread of `evaluate`, if `info.guess_depth` is above 0. `listen(tell)` is called once, before the
first step; the engine then calls `tell` with early hints in the thread of `evaluate`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cloud_verifier.core.engine_protocol import (
    GuessPlan,
    GuessResult,
    StepHints,
    StepPlan,
    StepResult,
    TargetEngine,
    TargetInfo,
)
from common.errors import LocalError, UserError
from common.messages import Open

Stats = Mapping[str, float | Mapping[str, float]]
"""Figures by name (lower case, underscores): totals that only grow under names that end in `_total`, anything
else as it stands. A mapping tells a figure by reason."""


@dataclass(slots=True)
class StepCounts:
    """Counts an engine's steps for the metrics of CUDA graphs."""

    graph: int = 0  # replayed
    eager: int = 0
    captures: int = 0  # graphs made
    reasons: Counter[str] = field(default_factory=Counter)  # why steps were eager, if graphs were asked for


def stats_of(engine: Any) -> Stats:
    """Return the engine's figures, or none if the engine has none."""
    stats: Stats = engine.stats() if hasattr(engine, "stats") else {}
    return stats


def check_grammar(engine: Any, request: Open) -> None:
    """Raise `UserError` or `PeerError` if the engine cannot follow the grammar of a session."""
    if not request.sampling.grammar:
        return
    if not hasattr(engine, "check_grammar"):
        raise UserError("this verifier takes no grammars; leave the grammar out")
    engine.check_grammar(request)


def prepare_grammars(engine: Any) -> None:
    """Have the engine prepare what its first grammar needs."""
    if hasattr(engine, "prepare_grammars"):
        engine.prepare_grammars()


def guess(engine: Any, plan: GuessPlan) -> GuessResult:
    """Let the engine's own drafter guess. Raises `LocalError` if the engine has none."""
    if not hasattr(engine, "guess"):
        raise LocalError("guesses were asked of an engine without a drafter")
    guesses: GuessResult = engine.guess(plan)
    return guesses


def listen(engine: Any, tell: Callable[[StepHints], None]) -> None:
    """Let the engine call `tell` with the hints of each step, if it has any."""
    if hasattr(engine, "listen"):
        engine.listen(tell)


class EngineAround:
    """Delegates to the `engine` inside every method that it does not define itself."""

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine
        self.info: TargetInfo = engine.info

    def stats(self) -> Stats:
        return stats_of(self._engine)

    def check_grammar(self, request: Open) -> None:
        check_grammar(self._engine, request)

    def prepare_grammars(self) -> None:
        prepare_grammars(self._engine)

    def guess(self, plan: GuessPlan) -> GuessResult:
        return guess(self._engine, plan)

    def listen(self, tell: Callable[[StepHints], None]) -> None:
        listen(self._engine, tell)


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
        if not 0.0 <= floor_s < 60.0:
            raise UserError(f"the step floor is {floor_s} s; it must lie in [0, 60)")
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
