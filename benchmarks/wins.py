"""The adaptive policy against every other scheme, world by world: where it is faster, and where it is not."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from common import figures
from simulator.historical import HISTORICAL
from simulator.pool import Job, Pool
from simulator.results import SessionResult
from simulator.schemes import SYNC_BEST, variants
from simulator.world import World

ADAPTIVE, STREAMING = "adaptive", "off"
RIVALS = (*HISTORICAL, "chain", "tree", SYNC_BEST, STREAMING)
MARGIN = 0.01  # ratios within it count as equal
SURE = 2.0  # standard errors beyond `MARGIN`'s middle, 1, that a loss must lie to be one
FRESH = 10_000  # seeds of a second look begin above it; no first look has them


@dataclass(frozen=True, slots=True)
class Run:
    """One text of one scheme. `ms` is per token after the first, the others per token of text."""

    ms: float
    steps: float  # of the target
    sent: float  # draft tokens


@dataclass(frozen=True, slots=True)
class Meeting:
    """The adaptive policy and a rival in one world, on the same seeds."""

    world: str
    policy: str  # the rival's; tells the block that `sync_best` found
    ours: tuple[Run, ...]
    theirs: tuple[Run, ...]

    @property
    def ratio(self) -> float:
        """Of the means over seeds: below 1 the adaptive policy is faster."""
        return fmean(run.ms for run in self.ours) / fmean(run.ms for run in self.theirs)

    @property
    def standard_error(self) -> float:
        """Of the ratio, seed by seed, so that what both have in common drops out; NaN for one seed."""
        if len(self.ours) < 2:
            return math.nan
        ratio = self.ratio
        off = [a.ms - ratio * b.ms for a, b in zip(self.ours, self.theirs, strict=True)]
        return stdev(off) / math.sqrt(len(off)) / fmean(run.ms for run in self.theirs)

    @property
    def is_lost(self) -> bool:
        """The rival is faster by more than the margin."""
        return self.ratio > 1.0 + MARGIN

    @property
    def is_surely_slower(self) -> bool:
        """The rival is faster by more than noise, however little that is."""
        return self.ratio > 1.0 + SURE * self.standard_error


def wins(
    pool: Pool, worlds: Mapping[str, World], seeds: int, again: int, rivals: Sequence[str] | None = None
) -> dict[str, Any]:
    """Each rival: worlds won, drawn and lost, and the lost ones with `again` other seeds each.

    `seeds` count from each world's own. A search (`sync_best`) is won by its best setting in each world, with
    hindsight. Without `rivals` it meets all of `RIVALS`.
    """
    rivals = RIVALS if rivals is None else rivals
    found = {rival: list[Meeting]() for rival in rivals}
    for meetings in _meetings(
        pool, [(name, _seeded(world, seeds), rivals) for name, world in worlds.items()]
    ):
        for rival, meeting in zip(rivals, meetings, strict=True):
            found[rival].append(meeting)
    lost = {rival: [m.world for m in meetings if m.is_lost] for rival, meetings in found.items()}
    second = [
        (name, _seeded(replace(worlds[name], seed=FRESH + worlds[name].seed), again), [rival])
        for rival, names in lost.items()
        for name in names
    ]
    looked = iter([meetings[0] for meetings in _meetings(pool, second)])
    losses = {rival: [next(looked) for _ in names] for rival, names in lost.items()}
    return {
        "worlds": len(worlds),
        "seeds": seeds,
        "seeds_of_a_second_look": again,
        "adaptive": _costs([run for meeting in found[rivals[0]] for run in meeting.ours]),
        "rivals": {rival: _told(found[rival], losses[rival]) for rival in rivals},
    }


def _seeded(world: World, seeds: int) -> list[World]:
    return [replace(world, seed=world.seed + number) for number in range(seeds)]


def _meetings(
    pool: Pool, cases: Sequence[tuple[str, Sequence[World], Sequence[str]]]
) -> Iterator[list[Meeting]]:
    """For each case (a name, its seeds, rivals) a meeting with every rival."""
    results = pool.map(job for _, worlds, rivals in cases for job in _jobs(worlds, rivals))
    for number, (name, worlds, rivals) in enumerate(cases):
        runs = {policy: tuple(run_of(next(results)[0]) for _ in worlds) for policy in _policies(rivals)}
        best = {
            rival: min(variants(rival), key=lambda each: sum(r.ms for r in runs[each])) for rival in rivals
        }
        yield [Meeting(name, best[rival], runs[ADAPTIVE], runs[best[rival]]) for rival in rivals]
        print(f"… {number + 1} of {len(cases)}: {name}", file=sys.stderr, flush=True)


def _jobs(worlds: Sequence[World], rivals: Sequence[str]) -> Iterator[Job]:
    return ((policy, world) for policy in _policies(rivals) for world in worlds)


def _policies(rivals: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([ADAPTIVE, *(policy for rival in rivals for policy in variants(rival))]))


def pace(result: SessionResult) -> float:
    """Milliseconds per token after the first."""
    return figures.pace([result.as_run()])


def run_of(result: SessionResult) -> Run:
    """What counts of a text."""
    count, stats = len(result.tokens), result.stats
    return Run(pace(result), stats.target_steps / count, stats.proposed / count)


def _costs(runs: Sequence[Run]) -> dict[str, float]:
    """Means over all worlds."""
    return {
        "target_steps_per_token": round(fmean(run.steps for run in runs), 3),
        "draft_tokens_per_token": round(fmean(run.sent for run in runs), 3),
    }


def _told(meetings: Sequence[Meeting], losses: Sequence[Meeting]) -> dict[str, Any]:
    worst = max(meetings, key=lambda meeting: meeting.ratio)
    return {
        "faster": sum(meeting.ratio < 1.0 - MARGIN for meeting in meetings),
        "equal": sum(abs(meeting.ratio - 1.0) <= MARGIN for meeting in meetings),
        "slower": sum(meeting.is_lost for meeting in meetings),
        "slower_again": sum(meeting.is_lost and meeting.is_surely_slower for meeting in losses),
        "geometric_mean": round(math.exp(fmean(math.log(meeting.ratio) for meeting in meetings)), 4),
        "worst": round(worst.ratio, 4),
        "worst_world": worst.world,
        **_costs([run for meeting in meetings for run in meeting.theirs]),
        "losses": [_loss(meeting) for meeting in sorted(losses, key=lambda each: -each.ratio)],
    }


def _loss(meeting: Meeting) -> dict[str, Any]:
    """A lost world on the seeds of the second look."""
    return {
        "world": meeting.world,
        "policy": meeting.policy,
        "ratio": round(meeting.ratio, 4),
        "standard_error": figures.rounded(meeting.standard_error),
        "ours": {"ms_per_token": round(fmean(r.ms for r in meeting.ours), 3), **_costs(meeting.ours)},
        "theirs": {"ms_per_token": round(fmean(r.ms for r in meeting.theirs), 3), **_costs(meeting.theirs)},
    }


def in_words(report: Mapping[str, Any]) -> str:
    """A line for each rival."""
    return "\n".join(
        f"{rival}: adaptive is faster in {row['faster']} of {report['worlds']} worlds, equal in "
        f"{row['equal']}, slower in {row['slower']} ({row['slower_again']} of them again on other seeds); "
        f"{row['geometric_mean']:.3f} of its time per token, at worst {row['worst']:.3f} "
        f"({row['worst_world']})"
        for rival, row in report["rivals"].items()
    )
