"""Runs an experiment, every scheme on every seed, and reports the outcomes."""

from __future__ import annotations

import math
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import starmap
from statistics import fmean, stdev
from typing import Any, Self

from common.errors import CapacityError, UserError
from simulator.figures import (
    PERCENTS,
    Figures,
    Latencies,
    Measures,
    SessionResult,
    as_json,
    figures,
    latencies,
    measures,
    pace,
    rounded,
)
from simulator.files import Experiment
from simulator.schemes import CLAIRVOYANT, SERVER_STREAMING, is_bounded, run_replica, run_scheme, variants
from simulator.system import dealt_back
from simulator.world import World

# The processors, shared by all runs of a command: one set of processes from its beginning to its end.

Job = tuple[str, World]
"""A scheme by name, and the world that it runs in. It is done in parts, one for each of its
verifiers, which have nothing to do with each other."""

AHEAD = 64
"""Parts per process that are handed out or done before their turn: enough that a long one keeps no processor
waiting, and few enough that a sweep of thousands of points does not wait in memory."""


class Pool:
    """Runs jobs on worker processes; a context manager. With one worker all jobs run in this process.

    An exception, Ctrl-C included, ends the processes amid their jobs.
    """

    def __init__(self, workers: int = 0, most: int | None = None) -> None:
        """Take `workers` processes, 0 for one per processor; at most `most`, the number of parts.

        Raises `UserError`.
        """
        if workers < 0:
            raise UserError(f"workers is {workers}; it must be 1 or more, or 0 for one per processor")
        available = workers or os.cpu_count() or 1
        self.workers = available if most is None else min(available, most)
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.workers > 1:
            # A terminal sends Ctrl-C to every process; each would print where it was.
            ignore = (signal.SIGINT, signal.SIG_IGN)
            self._executor = ProcessPoolExecutor(self.workers, initializer=signal.signal, initargs=ignore)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._executor is not None and error is None:
            self._executor.shutdown()
        elif self._executor is not None:
            _abandon(self._executor)

    def map(
        self, jobs: Iterable[Job], told: Callable[[], None] = lambda: None
    ) -> Iterator[list[SessionResult]]:
        """Yield results in the order of the jobs; `told` is called once for each.

        Raises `CapacityError` if the system ended a process, which happens when memory runs out.
        """
        executor = self._executor
        for result in starmap(run_scheme, jobs) if executor is None else self._ahead(jobs, executor):
            told()
            yield result

    def _ahead(self, jobs: Iterable[Job], executor: ProcessPoolExecutor) -> Iterator[list[SessionResult]]:
        waiting, num_parts = deque[tuple[World, list[Future[list[SessionResult]]]]](), 0
        try:
            for scheme, world in jobs:
                replicas = range(world.num_verifiers)
                parts = [executor.submit(run_replica, scheme, world, each) for each in replicas]
                waiting.append((world, parts))
                num_parts += len(parts)
                while num_parts >= AHEAD * self.workers and waiting:
                    where, parts = waiting.popleft()
                    num_parts -= len(parts)
                    yield dealt_back(where, [part.result() for part in parts])
            while waiting:
                where, parts = waiting.popleft()
                yield dealt_back(where, [part.result() for part in parts])
        except BrokenProcessPool as error:
            raise CapacityError(
                "the system ended one of the processes that simulate, probably because memory ran out; "
                "give fewer --workers or a smaller world"
            ) from error


def _abandon(executor: ProcessPoolExecutor) -> None:
    """End the processes without waiting for the jobs that they are at."""
    # Before Python 3.14, which has terminate_workers(), an executor does not tell which processes are its.
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


Progress = Callable[[int, int], None]
"""Told (runs done, runs in all)."""

Early = Callable[[list["SchemeOutcome"]], None]
"""Gets the outcomes of the first seeds: of the first, of two, of four and so on, before those of all."""


@dataclass(frozen=True, slots=True)
class SchemeOutcome:
    """Reports a scheme over all seeds. `paces` are ms per token seed by seed, after each text's first token;
    `whole_pace` counts from each session's beginning."""

    scheme: str  # as it was asked for
    policy: str  # what ran; tells the block that `sync_best` found
    figures: Figures
    measures: Measures
    latencies: Latencies
    paces: tuple[float, ...]
    whole_pace: float
    has_bottleneck: bool  # on its link

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean pace over seeds, ms; 0 for a single seed."""
        return stdev(self.paces) / math.sqrt(len(self.paces)) if len(self.paces) > 1 else 0.0


def run_experiment(
    experiment: Experiment,
    workers: int = 0,
    progress: Progress = lambda done, total: None,
    early: Early | None = None,
) -> list[SchemeOutcome]:
    """Run all schemes, in the order asked for. `workers` processes, 0 for one per processor.

    The result does not depend on `workers`. Raises `UserError` for an unknown scheme.
    """
    total = num_runs(experiment)
    with Pool(workers, num_parts(experiment)) as pool:
        return next(run_experiments([experiment], pool, lambda done: progress(done, total), early))


def run_experiments(
    experiments: Sequence[Experiment],
    pool: Pool,
    told: Callable[[int], None] = lambda done: None,
    early: Early | None = None,
) -> Iterator[list[SchemeOutcome]]:
    """Yield each experiment's outcomes in order, as soon as its last run is done.

    Runs of later experiments proceed meanwhile. `told` gets the number of finished runs, of all of them.
    """
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        told(done)

    results = pool.map((job for experiment in experiments for job in _jobs(experiment)), count)
    for experiment in experiments:
        by_policy: ByPolicy = {policy: [] for policy in _all_policies(experiment)}
        for num_seeds in range(1, experiment.repeats + 1):
            for seeds in by_policy.values():
                seeds.append(next(results))
            is_power_of_two = num_seeds.bit_count() == 1
            if early is not None and is_power_of_two and num_seeds < experiment.repeats:
                early(_outcomes(experiment, by_policy))
        yield _outcomes(experiment, by_policy)


def num_runs(experiment: Experiment) -> int:
    """Count the simulations of an experiment."""
    return len(_all_policies(experiment)) * experiment.repeats


def num_parts(experiment: Experiment) -> int:
    """Count the runs that can proceed at once: each of a world's verifiers is simulated by itself."""
    return num_runs(experiment) * experiment.world.num_verifiers


def _jobs(experiment: Experiment) -> Iterator[Job]:
    worlds: list[World] = experiment.worlds()
    return ((policy, world) for world in worlds for policy in _all_policies(experiment))


def distance_to_bound(outcomes: Sequence[SchemeOutcome], scheme: str) -> float | None:
    """Return the ratio of `scheme`'s time per token to the clairvoyant bound's, from each session's beginning
    to its end.

    None if no bound was run, or if it does not bound: for a draft that is not on the device or writes another
    text, and on a link with a bottleneck, where the bound's many small messages wait for each other.
    """
    by_scheme = {outcome.scheme: outcome for outcome in outcomes}
    bound = by_scheme.get(CLAIRVOYANT)
    if bound is None or not is_bounded(scheme) or bound.has_bottleneck:
        return None
    return by_scheme[scheme].whole_pace / bound.whole_pace


def as_dict(outcome: SchemeOutcome) -> dict[str, float | str | bool | None]:
    """Return the demo's keys, the standard error, and the figures that only the simulator has."""
    return {
        "policy": outcome.policy,
        **as_json(outcome.figures),
        "ms_per_token_standard_error": rounded(outcome.standard_error),
        **{key: rounded(value) for key, value in asdict(outcome.measures).items()},
    }


def percentiles(outcome: SchemeOutcome, kind: str) -> dict[str, float | None]:
    """Return latencies of a kind in ms by percentile, `p99.5` for example; empty if there are none."""
    return {
        f"p{percent:g}": rounded(value)
        for percent, value in zip(PERCENTS, outcome.latencies[kind], strict=False)
    }


def _all_policies(experiment: Experiment) -> list[str]:
    """Each once, in order of appearance."""
    return list(dict.fromkeys(policy for scheme in experiment.schemes for policy in variants(scheme)))


ByPolicy = dict[str, list[list[SessionResult]]]
"""The sessions of each seed, by policy."""


def _outcomes(experiment: Experiment, by_policy: ByPolicy) -> list[SchemeOutcome]:
    world = experiment.world
    has_bottleneck = any(link.has_bottleneck for link in (world.link, *(s.link for s in world.sites)))
    return [_outcome(scheme, by_policy, has_bottleneck) for scheme in experiment.schemes]


def _outcome(scheme: str, by_policy: ByPolicy, has_bottleneck: bool) -> SchemeOutcome:
    policy = min(variants(scheme), key=lambda name: pace(_as_runs(by_policy[name])))
    seeds = by_policy[policy]
    sessions = [result for seed in seeds for result in seed]
    return SchemeOutcome(
        scheme,
        policy,
        figures(_as_runs(seeds), [result.truth for result in sessions]),
        measures(sessions),
        latencies(sessions),
        tuple(pace(_as_runs([seed])) for seed in seeds),
        1e3 * sum(each.arrivals[-1] for each in sessions) / sum(len(each.tokens) for each in sessions),
        has_bottleneck,
    )


def _as_runs(seeds: Sequence[Sequence[SessionResult]]) -> list[dict[str, Any]]:
    """Return the runs of all seeds, as `simulator.figures` reads them."""
    return [result.as_run() for sessions in seeds for result in sessions]


def mean_speedup(
    outcomes: Sequence[SchemeOutcome], scheme: str, over: str = SERVER_STREAMING
) -> float | None:
    """Return how many times fewer ms per token on average, on equal draws; None without `over`."""
    by_scheme = {outcome.scheme: outcome.paces for outcome in outcomes}
    if over not in by_scheme or not fmean(by_scheme[scheme]):
        return None
    return fmean(by_scheme[over]) / fmean(by_scheme[scheme])
