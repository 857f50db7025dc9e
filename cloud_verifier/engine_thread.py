"""The thread that the engine runs in: one step after the other, where it may without asking in between."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cloud_verifier.core.ahead import NextStep
from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step."""

    plan: StepPlan
    result: StepResult | BaseException
    ended_at: float  # seconds
    next_began: bool = False  # the engine went on with the step that had been looked ahead to


class EngineThread:
    """Runs the plans that it is given. All methods but the thread's own belong to the event loop's thread.

    Args: engine; clock, seconds, as of the scheduler's driver; on_end, called in the event loop's thread with
    what became of each step, in order.
    """

    def __init__(
        self, engine: TargetEngine, clock: Callable[[], float], on_end: Callable[[Outcome], None]
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._on_end = on_end
        self._plans: queue.SimpleQueue[StepPlan | None] = queue.SimpleQueue()
        self._next: deque[NextStep] = deque()  # one at most; who takes it out has it
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """From within the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Returns when the running step is over."""
        self._stopped = True
        self._next.clear()
        self._plans.put(None)
        self._thread.join()

    def begin(self, plan: StepPlan) -> None:
        """Run a step; nothing runs now. The engine has begun when this returns, if it can."""
        self._plans.put(plan)
        time.sleep(
            0
        )  # releases Python's lock, else it would begin when this thread is done with other things

    def may_go_on_with(self, step: NextStep) -> None:
        """When the running step is over, this one may follow at once."""
        self._next.append(step)

    def take_back(self) -> bool:
        """The step that may follow must not any more. False if it has begun, or there was none."""
        try:
            self._next.popleft()
        except IndexError:
            return False
        return True

    # In the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (plan := self._plans.get()) is not None:
            following: StepPlan | None = plan
            while following is not None:
                following = self._run(following)

    def _run(self, plan: StepPlan) -> StepPlan | None:
        """Run a step, tell of it, and return the one that follows at once, if any."""
        try:
            result = self._engine.evaluate(plan)
            following = self._follow(result)
        except BaseException as error:  # noqa: BLE001 - the worker waits for it, and tells those whose step it was
            self._tell(Outcome(plan, error, self._clock()))
            return None
        self._tell(Outcome(plan, result, self._clock(), following is not None))
        return following

    def _follow(self, result: StepResult) -> StepPlan | None:
        try:
            step = self._next.popleft()
        except IndexError:
            return None
        return step.complete(result)

    def _tell(self, outcome: Outcome) -> None:
        assert self._loop is not None, "started before"
        self._loop.call_soon_threadsafe(self._hear, outcome)

    def _hear(self, outcome: Outcome) -> None:
        """In the event loop's thread. After `stop` nobody wants to know."""
        if not self._stopped:
            self._on_end(outcome)
