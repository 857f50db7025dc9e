"""What a verifier spends its time on, measured from inside: its engine, its scheduler, and all the rest."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine, TargetInfo

Clock = Callable[[], float]

PARTS = ("next_step", "look_ahead", "on_step_done", "on_propose", "on_open", "on_close", "effects")
"""Calls of a scheduler that are timed apart."""


@dataclass(slots=True)
class Tally:
    """Since the last `MeteredEngine.take`. Times in seconds; of `cpu` the engine thread's own."""

    rows: int = 0  # evaluated, prefill included
    choices: int = 0
    cpu: float = 0.0
    steps: list[float] = field(default_factory=list)  # time in the engine, of each step
    gaps: list[float] = field(default_factory=list)  # from a step's end to the next one's start, not at rest
    cycles: list[float] = field(default_factory=list)  # from a step's start to the next one's, not at rest
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))


class Meter:
    """Takes the time of an engine and of a scheduler: wrap both with it, then ask `take`.

    The engine's thread and the event loop's write to different fields, but for `rested`, a flag.
    """

    def __init__(self, clock: Clock = time.perf_counter, thread_clock: Clock = time.thread_time) -> None:
        self.clock = clock
        self._thread_clock = thread_clock
        self.tally = Tally()
        self._began_at: float | None = None  # of the newest step
        self._ended_at = 0.0
        self._rested = True
        self._taken_at, self._taken_cpu = clock(), time.process_time()

    def engine(self, engine: TargetEngine) -> TargetEngine:
        return _MeteredEngine(engine, self)

    def scheduler(self, scheduler: VerifyScheduler) -> Any:
        """Behaves as `scheduler`, whose class may be compiled: an interpreted one cannot extend it."""
        return _MeteredScheduler(scheduler, self)

    def rest(self) -> None:
        """There was nothing to evaluate: what lies before the next step is no gap."""
        self._rested = True

    def evaluate(self, engine: TargetEngine, plan: StepPlan) -> StepResult:
        """One step of `engine`, timed. In the engine's thread."""
        began_at, cpu = self.clock(), self._thread_clock()
        tally = self.tally
        if self._began_at is not None and not self._rested:
            tally.gaps.append(began_at - self._ended_at)
            tally.cycles.append(began_at - self._began_at)
        self._began_at, self._rested = began_at, False
        result = engine.evaluate(plan)
        self._ended_at = self.clock()
        tally.steps.append(self._ended_at - began_at)
        tally.cpu += self._thread_clock() - cpu
        tally.rows += plan.num_rows
        tally.choices += plan.num_outputs
        return result

    def take(self) -> dict[str, Any]:
        """What happened since the last call, as JSON; counts begin anew. Times in ms."""
        tally, self.tally = self.tally, Tally()
        now, cpu = self.clock(), time.process_time()
        wall, spent = now - self._taken_at, cpu - self._taken_cpu
        self._taken_at, self._taken_cpu = now, cpu
        return {
            "wall_ms": 1e3 * wall,
            "cpu_ms": 1e3 * spent,
            "engine_cpu_ms": 1e3 * tally.cpu,
            "engine_ms": 1e3 * sum(tally.steps),
            "steps": len(tally.steps),
            "rows": tally.rows,
            "choices": tally.choices,
            "step_ms": spread(tally.steps),
            "gap_ms": spread(tally.gaps),
            "cycle_ms": spread(tally.cycles),
            "scheduler_ms": {name: 1e3 * spent for name, spent in tally.parts.items()},
            "scheduler_calls": tally.calls,
        }


def spread(times: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles of seconds, in ms; None where there are none."""
    if not times:
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    found = 1e3 * np.asarray(times)
    p50, p95, p99 = np.percentile(found, (50, 95, 99)).tolist()
    return {"mean": float(found.mean()), "p50": p50, "p95": p95, "p99": p99, "max": float(found.max())}


class _MeteredEngine:
    """A `TargetEngine`."""

    def __init__(self, engine: TargetEngine, meter: Meter) -> None:
        self._engine, self._meter = engine, meter

    @property
    def info(self) -> TargetInfo:
        return self._engine.info

    def evaluate(self, plan: StepPlan) -> StepResult:
        return self._meter.evaluate(self._engine, plan)


class _MeteredScheduler:
    """Passes everything on; calls named in `PARTS` are timed."""

    def __init__(self, scheduler: VerifyScheduler, meter: Meter) -> None:
        self._scheduler = scheduler
        self._meter = meter
        for name in PARTS:
            setattr(self, name, self._timed(name, getattr(scheduler, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        meter = self._meter

        def run(*arguments: Any) -> Any:
            began_at = meter.clock()
            result = call(*arguments)
            tally = meter.tally
            tally.parts[name] += meter.clock() - began_at
            tally.calls[name] += 1
            if result is None and name == "next_step":
                meter.rest()
            return result

        return run


def memory_bytes() -> int:
    """Resident memory of this process; where the system does not tell, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return pages * os.sysconf("SC_PAGE_SIZE")
