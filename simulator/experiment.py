"""Runs an experiment: every scheme on every seed, and what they were like."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from common.errors import UserError
from common.figures import Figures, as_json, figures, pace
from simulator.files import Experiment
from simulator.schemes import CLAIRVOYANT, SERVER_STREAMING, run_scheme, variants
from simulator.system import SessionResult
from simulator.world import World

Progress = Callable[[int, int], None]
"""Told (runs done, runs in all)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scheme over all seeds. `paces` are ms per token seed by seed."""

    scheme: str  # as it was asked for
    policy: str  # what ran; tells the block that `sync_best` found
    figures: Figures
    paces: tuple[float, ...]

    @property
    def standard_error(self) -> float:
        """Of the mean pace over seeds, ms; 0 for a single seed."""
        return stdev(self.paces) / math.sqrt(len(self.paces)) if len(self.paces) > 1 else 0.0


def run_experiment(
    experiment: Experiment, workers: int = 0, progress: Progress = lambda done, total: None
) -> list[Outcome]:
    """All schemes, in the order asked for. `workers` processes, 0 for one per processor.

    The result does not depend on `workers`. Raises `UserError` for a scheme that is none.
    """
    policies = list(dict.fromkeys(policy for scheme in experiment.schemes for policy in variants(scheme)))
    worlds = experiment.worlds()
    jobs = [(policy, world) for policy in policies for world in worlds]
    runs = dict(zip(jobs, _all(jobs, workers, progress), strict=True))
    by_policy = {policy: [runs[policy, world] for world in worlds] for policy in policies}
    return [_outcome(scheme, by_policy) for scheme in experiment.schemes]


def run_one(policy: str, world: World) -> list[SessionResult]:
    """A picklable job."""
    return run_scheme(policy, world)


def distance_to_bound(outcomes: Sequence[Outcome], scheme: str) -> float | None:
    """How many times more ms per token `scheme` takes than the clairvoyant bound; None without a bound."""
    found = {outcome.scheme: outcome.figures.ms_per_token for outcome in outcomes}
    return found[scheme] / found[CLAIRVOYANT] if CLAIRVOYANT in found else None


def as_dict(outcome: Outcome) -> dict[str, float | str | bool]:
    """The demo's keys, and the standard error."""
    return {
        "policy": outcome.policy,
        **as_json(outcome.figures),
        "ms_per_token_standard_error": round(outcome.standard_error, 3),
    }


def _all(
    jobs: Sequence[tuple[str, World]], workers: int, progress: Progress
) -> Iterator[list[SessionResult]]:
    """Results in the order of the jobs."""
    workers = workers or os.cpu_count() or 1
    if workers < 1:
        raise UserError(f"workers is {workers}; it must be at least 1")
    if workers == 1 or len(jobs) == 1:
        for done, job in enumerate(jobs, 1):
            yield run_one(*job)
            progress(done, len(jobs))
        return
    with ProcessPoolExecutor(min(workers, len(jobs))) as pool:
        futures: list[Future[list[SessionResult]]] = [pool.submit(run_one, *job) for job in jobs]
        try:
            for done, _ in enumerate(as_completed(futures), 1):
                progress(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        yield from (future.result() for future in futures)


def _outcome(scheme: str, by_policy: dict[str, list[list[SessionResult]]]) -> Outcome:
    policy = min(variants(scheme), key=lambda name: pace(_as_runs(by_policy[name])))
    seeds = by_policy[policy]
    runs = _as_runs(seeds)
    references = [result.truth for sessions in seeds for result in sessions]
    paces = tuple(pace(_as_runs([seed])) for seed in seeds)
    return Outcome(scheme, policy, figures(runs, references), paces)


def _as_runs(seeds: Sequence[Sequence[SessionResult]]) -> list[dict[str, Any]]:
    """Sessions as `common.figures` reads them."""
    return [
        {
            "tokens": result.tokens,
            "arrivals_ms": [1e3 * arrival for arrival in result.arrivals],
            "stats": asdict(result.stats),
            "link_bytes_up": result.bytes_up,
            "link_bytes_down": result.bytes_down,
        }
        for sessions in seeds
        for result in sessions
    ]


def mean_speedup(outcomes: Sequence[Outcome], scheme: str, over: str = SERVER_STREAMING) -> float | None:
    """How many times fewer ms per token, seed by seed on the same random numbers; None without `over`."""
    found = {outcome.scheme: outcome.paces for outcome in outcomes}
    if over not in found:
        return None
    return fmean(found[over]) / fmean(found[scheme])
