"""Compares the published figures of a scheme with the same scheme here, in its paper's own setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from schemes.policies.rounds import tokens_per_round
from simulator.experiment import Job, Pool
from simulator.figures import SessionResult, pace
from simulator.world import World

Results = Sequence[Sequence[SessionResult]]
"""The sessions of each job, in the order of the jobs."""

ALONE = "colocated:off"
"""The target on one machine, without drafts."""


@dataclass(frozen=True, slots=True)
class Claim:
    """States one published figure, and how it is measured here.

    `measure` gets the results of all `jobs`; a claim about a formula has no jobs. `within` is the largest
    relative difference that counts as reproduced; None where the paper leaves out too much of its setting,
    so that only the direction can be compared: the side of `even`, where nothing is gained. `others` are
    the jobs of further settings that the paper allows; they give the range. `remark` says what the paper does
    not tell, or why the figures differ.
    """

    system: str  # the row of docs/schemes.md
    quantity: str  # in words, with its unit or what it is divided by
    figure: float
    measure: Callable[[Results], float]
    jobs: tuple[Job, ...] = ()
    within: float | None = None
    remark: str = ""
    even: float = 1.0
    others: tuple[tuple[Job, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds a claim and the figures found here."""

    claim: Claim
    ours: float
    others: tuple[float, ...] = ()  # in the other settings

    @property
    def range(self) -> tuple[float, float]:
        """Return the least and the greatest figure over all settings."""
        return min(self.ours, *self.others), max(self.ours, *self.others)

    @property
    def difference(self) -> float | None:
        """Return the relative difference from the claim, 0.1 for 10 % above it; None without a bound."""
        return None if self.claim.within is None else self.ours / self.claim.figure - 1.0

    @property
    def holds(self) -> bool:
        """Tell whether the difference lies within the claim's bound; without a bound, whether the direction
        is the claim's."""
        if self.difference is not None and self.claim.within is not None:
            return abs(self.difference) <= self.claim.within
        return self._points_alike(self.ours)

    @property
    def always_holds(self) -> bool:
        """Tell whether the direction is the claim's in all settings."""
        return all(map(self._points_alike, self.range))

    def _points_alike(self, ours: float) -> bool:
        even = self.claim.even
        return (ours - even) * (self.claim.figure - even) > 0.0


def compare(claims: Iterable[Claim], pool: Pool) -> Iterator[Comparison]:
    """Yield a comparison for each claim, in order. A job that several claims name runs once."""
    claims = list(claims)
    settings = [some for claim in claims for some in (claim.jobs, *claim.others)]
    jobs = list(dict.fromkeys(job for some in settings for job in some))
    results = dict(zip(jobs, pool.map(jobs), strict=True))
    for claim in claims:
        ours, *others = (
            claim.measure([results[job] for job in some]) for some in (claim.jobs, *claim.others)
        )
        yield Comparison(claim, ours, tuple(others))


# Jobs -------------------------------------------------------------------------------------------------------


def seeds(scheme: str, world: World, repeats: int = 5) -> tuple[Job, ...]:
    """Return one job for each of `repeats` seeds, so that two schemes meet the same texts."""
    if scheme == ALONE:  # every seed has the same pace
        return ((scheme, world),) * repeats
    return tuple((scheme, replace(world, seed=world.seed + place)) for place in range(repeats))


# Measures ---------------------------------------------------------------------------------------------------


def mean_pace(results: Results) -> float:
    """Return the mean over jobs of ms per token."""
    return fmean(pace([each.as_run() for each in sessions]) for sessions in results)


def paces(results: Results, count: int) -> list[float]:
    """Return the mean pace of each of `count` equal parts of the jobs."""
    size = len(results) // count
    return [mean_pace(results[place * size : (place + 1) * size]) for place in range(count)]


def speedup(results: Results) -> float:
    """Return how many times as fast the second half of the jobs is as the first half, token for token."""
    before, after = paces(results, 2)
    return before / after


# Fits -------------------------------------------------------------------------------------------------------


def fitted_acceptance(pace_at: Callable[[float], float], figure: float) -> float:
    """Return the acceptance at which a law of pace, which falls as acceptance rises, takes `figure`."""
    low, high = 0.0, 1.0
    for _ in range(40):  # halvings: far finer than a published figure
        middle = 0.5 * (low + high)
        low, high = (middle, high) if pace_at(middle) > figure else (low, middle)
    return low


def acceptance_of_blocks(block: int, draft_time: float, step_time: float, token_time: float) -> float:
    """Return the acceptance at which plain speculative decoding takes `token_time` a token; equal units."""

    def speculative(acceptance: float) -> float:
        return (block * draft_time + step_time) / tokens_per_round(block, acceptance)

    return fitted_acceptance(speculative, token_time)
