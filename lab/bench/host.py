"""Runs a measured verifier: `forerun verify` with a meter around its engine and its scheduler.

    python -m lab.bench.host --model lab/demo_models/target --json

The process takes the options of `forerun verify`; `--model formula` is a target without a model. It answers
each line on standard input with a line of JSON about the time since the last one, and stops at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetEngine
from cloud_verifier.core.limits import CPU_SLOTS
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.around import EngineAround
from cloud_verifier.server import serving
from cloud_verifier.server.worker import Worker
from cloud_verifier.settings import VerifierConfig
from common.wire.describe import TokenTable
from forerun.cli import reported
from forerun.commands import verify
from forerun.log_format import hush_libraries
from lab.bench.formula import FORMULA, TABLE, FormulaEngine
from lab.bench.load import json_lines
from lab.rig_verifier import floored, parser_of

Clock = Callable[[], float]


@dataclass(slots=True)
class RowTally:
    """Counts steps since the last `Meter.take`. Times are in seconds; `cpu` is the engine thread's own."""

    rows: int = 0  # evaluated, prefill included
    cpu: float = 0.0
    steps: list[float] = field(default_factory=list)  # time in the engine, of each step
    gaps: list[float] = field(default_factory=list)  # from a step's end to the next one's start, not at rest
    cycles: list[float] = field(default_factory=list)  # from a step's start to the next one's, not at rest


class Meter(EngineAround):
    """Times another engine. `scheduler` wraps its scheduler; `take` reports.

    The engine's thread and the event loop write to different fields, except for a flag.
    """

    def __init__(
        self,
        engine: TargetEngine,
        clock: Clock = time.perf_counter,
        thread_clock: Clock = time.thread_time,
    ) -> None:
        super().__init__(engine)
        self._clock = clock
        self._thread_clock = thread_clock
        self._tally = RowTally()
        self._began_at: float | None = None  # of the newest step
        self._ended_at = 0.0
        self._rested = True
        self._taken_at, self._taken_cpu = clock(), time.process_time()

    def scheduler(self, scheduler: VerifyScheduler) -> Any:
        """Wrap `scheduler`, whose class may be compiled and then cannot be extended."""
        return _MeteredScheduler(scheduler, self)

    def rest(self) -> None:
        """Note that there was nothing to evaluate: the time before the next step is no gap."""
        self._rested = True

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Time one step of the engine. Runs in the engine's thread."""
        began_at, cpu = self._clock(), self._thread_clock()
        tally = self._tally
        if self._began_at is not None and not self._rested:
            tally.gaps.append(began_at - self._ended_at)
            tally.cycles.append(began_at - self._began_at)
        self._began_at, self._rested = began_at, False
        result = self._engine.evaluate(plan)
        self._ended_at = self._clock()
        tally.steps.append(self._ended_at - began_at)
        tally.cpu += self._thread_clock() - cpu
        tally.rows += plan.num_rows
        return result

    def take(self) -> dict[str, Any]:
        """Return the figures since the last call as JSON, and reset them. Times are in ms."""
        tally, self._tally = self._tally, RowTally()
        now, cpu = self._clock(), time.process_time()
        wall, spent = now - self._taken_at, cpu - self._taken_cpu
        self._taken_at, self._taken_cpu = now, cpu
        return {
            "wall_ms": 1e3 * wall,
            "cpu_ms": 1e3 * spent,
            "engine_cpu_ms": 1e3 * tally.cpu,
            "steps": len(tally.steps),
            "rows": tally.rows,
            "step_ms": spread(tally.steps),
            "gap_ms": spread(tally.gaps),
            "cycle_ms": spread(tally.cycles),
        }


def spread(times: Sequence[float]) -> dict[str, float | None]:
    """Return mean and 95th percentile of seconds, in ms; None without times."""
    if not times:
        return {"mean": None, "p95": None}
    milliseconds = 1e3 * np.asarray(times)
    return {"mean": float(milliseconds.mean()), "p95": float(np.percentile(milliseconds, 95))}


class _MeteredScheduler:
    """Passes every call on, and notifies the meter when there is no step."""

    def __init__(self, scheduler: VerifyScheduler, meter: Meter) -> None:
        self._scheduler = scheduler
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def next_step(self, now: float) -> StepPlan | None:
        plan = self._scheduler.next_step(now)
        if plan is None:
            self._meter.rest()
        return plan


class Host:
    """Implements `serving.Watch`: answers on standard output."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        self._scheduler = scheduler
        metered: VerifyScheduler = self._meter.scheduler(scheduler)
        return metered

    async def run(self, worker: Worker) -> None:
        """Answer each line of standard input until it ends."""
        async for _ in json_lines():
            if self._scheduler.idle:
                self._scheduler.check_integrity()
            print(json.dumps(self._meter.take()), flush=True)


def load(config: VerifierConfig) -> tuple[TargetEngine, TokenTable]:
    """Load a model's engine, or make the formula's. Raise `UserError`."""
    if config.target.model != FORMULA:
        return serving.load(config)
    return FormulaEngine(config.target.slots or CPU_SLOTS), TABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parser_of(__doc__).parse_args(arguments)
    return reported(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> int:
    config = verify.config_of(options)
    verify.check(config)
    hush_libraries()
    engine, table = load(config)
    meter, announce = Meter(floored(options, engine)), verify.announcer(config)
    asyncio.run(serving.serve(config, meter, table, announce, Host(meter)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
