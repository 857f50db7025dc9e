"""Runs an experiment: every scheme on every seed, and what they were like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from common.figures import Figures, as_json, figures, pace, rounded
from simulator.files import Experiment
from simulator.measures import PERCENTS, Latencies, Measures, latencies, measures
from simulator.pool import Job, Pool
from simulator.results import SessionResult
from simulator.schemes import CLAIRVOYANT, SERVER_STREAMING, is_bounded, variants
from simulator.world import World

Progress = Callable[[int, int], None]
"""Told (runs done, runs in all)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scheme over all seeds. `paces` are ms per token seed by seed, after each text's first token;
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
        """Of the mean pace over seeds, ms; 0 for a single seed."""
        return stdev(self.paces) / math.sqrt(len(self.paces)) if len(self.paces) > 1 else 0.0


def run_experiment(
    experiment: Experiment, workers: int = 0, progress: Progress = lambda done, total: None
) -> list[Outcome]:
    """All schemes, in the order asked for. `workers` processes, 0 for one per processor.

    The result does not depend on `workers`. Raises `UserError` for a scheme that is none.
    """
    total = num_runs(experiment)
    with Pool(workers, num_parts(experiment)) as pool:
        return next(run_experiments([experiment], pool, lambda done: progress(done, total)))


def run_experiments(
    experiments: Sequence[Experiment], pool: Pool, told: Callable[[int], None] = lambda done: None
) -> Iterator[list[Outcome]]:
    """Each one's outcomes, in the order of the experiments, as soon as its last run is done.

    Runs of the next ones are under way meanwhile. `told` gets the number of runs done, of all of them.
    """
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        told(done)

    results = pool.map((job for experiment in experiments for job in _jobs(experiment)), count)
    for experiment in experiments:
        by_policy = {
            policy: [next(results) for _ in range(experiment.repeats)] for policy in _all_policies(experiment)
        }
        has_bottleneck = experiment.world.link.has_bottleneck
        yield [_outcome(scheme, by_policy, has_bottleneck) for scheme in experiment.schemes]


def num_runs(experiment: Experiment) -> int:
    """How many simulations it takes."""
    return len(_all_policies(experiment)) * experiment.repeats


def num_parts(experiment: Experiment) -> int:
    """How many of them can be under way at once: a world's replicas are simulated each for itself."""
    return num_runs(experiment) * experiment.world.verifier.replicas


def _jobs(experiment: Experiment) -> Iterator[Job]:
    worlds: list[World] = experiment.worlds()
    return ((policy, world) for policy in _all_policies(experiment) for world in worlds)


def distance_to_bound(outcomes: Sequence[Outcome], scheme: str) -> float | None:
    """How many times more time per token, from the session's beginning to its end, `scheme` takes than the
    clairvoyant bound.

    None where none was run, or where it is no bound: for a draft that is not on the device or writes another
    text, and on a link with a bottleneck, where the bound's many small messages wait for each other.
    """
    found = {outcome.scheme: outcome for outcome in outcomes}
    bound = found.get(CLAIRVOYANT)
    if bound is None or not is_bounded(scheme) or bound.has_bottleneck:
        return None
    return found[scheme].whole_pace / bound.whole_pace


def as_dict(outcome: Outcome) -> dict[str, float | str | bool | None]:
    """The demo's keys, the standard error, and what only the simulator tells."""
    return {
        "policy": outcome.policy,
        **as_json(outcome.figures),
        "ms_per_token_standard_error": rounded(outcome.standard_error),
        **{key: rounded(value) for key, value in asdict(outcome.measures).items()},
    }


def percentiles(outcome: Outcome, kind: str) -> dict[str, float | None]:
    """Latencies of a kind in ms by percentile, `p99.5` for example; empty if there are none."""
    return {
        f"p{percent:g}": rounded(value)
        for percent, value in zip(PERCENTS, outcome.latencies[kind], strict=False)
    }


def _all_policies(experiment: Experiment) -> list[str]:
    """Each once, in order of appearance."""
    return list(dict.fromkeys(policy for scheme in experiment.schemes for policy in variants(scheme)))


def _outcome(scheme: str, by_policy: dict[str, list[list[SessionResult]]], has_bottleneck: bool) -> Outcome:
    policy = min(variants(scheme), key=lambda name: pace(_as_runs(by_policy[name])))
    seeds = by_policy[policy]
    sessions = [result for seed in seeds for result in seed]
    return Outcome(
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
    """Of all seeds, as `common.figures` reads them."""
    return [result.as_run() for sessions in seeds for result in sessions]


def mean_speedup(outcomes: Sequence[Outcome], scheme: str, over: str = SERVER_STREAMING) -> float | None:
    """How many times fewer ms per token on average, on the same random numbers; None without `over`."""
    found = {outcome.scheme: outcome.paces for outcome in outcomes}
    if over not in found or not fmean(found[scheme]):
        return None
    return fmean(found[over]) / fmean(found[scheme])
