"""What it costs a verifier to be seen: `python -m benchmarks.telemetry [--json]`.

Microseconds of the event loop for each step, for sessions that decode without drafts, where everything else
that a step asks of the loop is least:

- `step`: the scheduler's own work, from the plan to the messages, without the engine;
- `seen`: all that is counted beside it: each session's tally, the histograms, bytes and messages;
- `look`: one snapshot, for a scrape or a view, in the event loop; `page`: the metrics page made of it, in a
  thread of its own.

Times are medians, and processor time of the thread: other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from prometheus_client import generate_latest

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.effects import Reply
from cloud_verifier.core.report import Tally, Waits
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
from cloud_verifier.telemetry.collector import registry
from cloud_verifier.worker import Worker
from common.messages import Open, Propose
from common.sampling import SamplingParams

VOCAB_SIZE = 1000
WARM_UP = 20  # steps


class Counter:
    """A target that writes t + 1 after t."""

    def __init__(self, num_slots: int) -> None:
        self.info = TargetInfo("counter", VOCAB_SIZE, 100_000, num_slots, (), b"")

    def evaluate(self, plan: StepPlan) -> StepResult:
        choices = tuple(
            ((item.tokens[item.outputs] + 1) % VOCAB_SIZE).astype(np.int32) for item in plan.items
        )
        return StepResult(choices, tuple(np.zeros(len(each), np.float32) for each in choices))


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one number of sessions. Microseconds, medians."""

    sessions: int
    step: float
    seen: float
    look: float
    page: float

    @property
    def share(self) -> float:
        """What being seen adds to the scheduler's work."""
        return self.seen / self.step


def measure(num_sessions: int, repeats: int) -> Cost:
    """Run `repeats` steps of so many sessions."""
    worker = _worker(num_sessions, repeats)
    steps, seen = list[float](), list[float]()
    for number in range(WARM_UP + repeats):
        step_time, seen_time = _step(worker, float(number))
        if number >= WARM_UP:
            steps.append(step_time)
            seen.append(seen_time)
    snapshot = worker.snapshot()
    page = registry(lambda: snapshot)
    return Cost(
        sessions=num_sessions,
        step=statistics.median(steps),
        seen=statistics.median(seen),
        look=statistics.median(_timed(worker.snapshot) for _ in range(repeats)),
        page=statistics.median(_timed(lambda: generate_latest(page)) for _ in range(max(5, repeats // 10))),
    )


def _worker(num_sessions: int, repeats: int) -> Worker:
    length = repeats + WARM_UP + 10
    engine = Counter(num_sessions * (length + 40))
    config = SchedulerConfig(max_sessions=num_sessions, max_rows=max(256, num_sessions))
    worker = Worker(engine, VerifyScheduler(engine.info, config))
    for number in range(num_sessions):
        key, _ = worker.connect()
        worker.receive(key, Open((number % VOCAB_SIZE,), SamplingParams(max_tokens=length), b""))
    return worker


def _step(worker: Worker, now: float) -> tuple[float, float]:
    """One step by hand: the scheduler's time, and that of all that is counted."""
    scheduler, engine = worker.scheduler, Counter(1)
    began = time.thread_time()
    plan = scheduler.next_step(now)
    assert plan is not None, "every session decodes"
    planned = time.thread_time()
    result = engine.evaluate(plan)
    evaluated = time.thread_time()
    scheduler.on_step_done(result, now + 0.03)
    effects = scheduler.effects()
    done = time.thread_time()
    tallies = [Tally(0.0, resumed=False) for _ in plan.items]
    ready = time.thread_time()
    waits = Waits()
    for tally in tallies:
        tally.count_step(now, 1, 0, 1)
        waits.add(tally, now)
        tally.count_commit(1, 0, 1, now)
    worker.monitor.stepped(scheduler.ledger.last_step)
    for effect in effects:
        if isinstance(effect, Reply):
            worker.monitor.note_sent(effect.session, effect.message, 25)
            worker.monitor.note_received(effect.session, ONE_NODE, 12)
    counted = time.thread_time()
    seen = counted - ready
    in_scheduler = planned - began + done - evaluated  # the tallies are part of it
    return 1e6 * in_scheduler, 1e6 * seen


ONE_NODE = Propose((1,), b"\0")


def _timed(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return 1e6 * (time.thread_time() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--repeats", type=int, default=300, help="steps (%(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    costs = [measure(number, options.repeats) for number in options.sessions]
    if options.json:
        print(json.dumps([{**asdict(cost), "share": cost.share} for cost in costs], indent=1))
        return 0
    print("| sessions | step, µs | seen, µs | share | look, µs | page, µs |")
    print("|---|---|---|---|---|---|")
    for cost in costs:
        print(
            f"| {cost.sessions} | {cost.step:.0f} | {cost.seen:.0f} | {100 * cost.share:.0f} % "
            f"| {cost.look:.0f} | {cost.page:.0f} |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
