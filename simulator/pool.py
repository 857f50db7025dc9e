"""The processors, shared by all runs of a command: one set of processes from its beginning to its end."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self

from common.errors import CapacityError, UserError
from simulator.results import SessionResult
from simulator.schemes import run_replica, run_scheme
from simulator.system import dealt_back
from simulator.world import World

Job = tuple[str, World]
"""A scheme by name, and the world that it runs in. It is done in parts, one for each of the verifier's
replicas, which have nothing to do with each other."""

AHEAD = 64
"""Parts per process that are handed out or done before their turn: enough that a long one keeps no processor
waiting, and few enough that a sweep of thousands of points does not wait in memory."""


class Pool:
    """A context manager. With one worker all runs here, in this process.

    Left by an exception, Ctrl-C among them, it ends its processes in the midst of their jobs.
    """

    def __init__(self, workers: int = 0, most: int | None = None) -> None:
        """`workers` processes, 0 for one per processor; at most `most`, which is how many parts there are.

        Raises `UserError`.
        """
        if workers < 0:
            raise UserError(f"workers is {workers}; it must be 1 or more, or 0 for one per processor")
        available = workers or os.cpu_count() or 1
        self.workers = available if most is None else min(available, most)
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.workers > 1:
            self._executor = ProcessPoolExecutor(self.workers, initializer=_leave_interrupts_to_the_parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is None:
            return
        if error is None:
            self._executor.shutdown()
        else:
            _abandon(self._executor)
        self._executor = None

    def map(
        self, jobs: Iterable[Job], told: Callable[[], None] = lambda: None
    ) -> Iterator[list[SessionResult]]:
        """Results in the order of the jobs; `told` is called once for each.

        Raises `CapacityError` if the system ended a process, which it does when memory runs out.
        """
        results = self._here(jobs) if self._executor is None else self._ahead(jobs, self._executor)
        for result in results:
            told()
            yield result

    def _here(self, jobs: Iterable[Job]) -> Iterator[list[SessionResult]]:
        return (run_scheme(*job) for job in jobs)

    def _ahead(self, jobs: Iterable[Job], executor: ProcessPoolExecutor) -> Iterator[list[SessionResult]]:
        waiting, num_parts = deque[list[Future[list[SessionResult]]]](), 0
        try:
            for scheme, world in jobs:
                replicas = range(world.verifier.replicas)
                waiting.append([executor.submit(run_replica, scheme, world, each) for each in replicas])
                num_parts += len(replicas)
                while num_parts >= AHEAD * self.workers and waiting:
                    num_parts -= len(waiting[0])
                    yield dealt_back([part.result() for part in waiting.popleft()])
            while waiting:
                yield dealt_back([part.result() for part in waiting.popleft()])
        except BrokenProcessPool as error:
            raise CapacityError(
                "the system ended one of the processes that simulate, probably because memory ran out; "
                "give fewer --workers or a smaller world"
            ) from error


def _leave_interrupts_to_the_parent() -> None:
    """A terminal sends Ctrl-C to every process; each would print where it was."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _abandon(executor: ProcessPoolExecutor) -> None:
    """End the processes without waiting for the jobs that they are at."""
    # Before Python 3.14, which has terminate_workers(), an executor does not tell which processes are its.
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
