"""Published claims: each asked bound holds, and a job that two claims share runs once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from schemes.claims.runner import Claim, compare, fitted_acceptance, seeds
from schemes.claims.table import CLAIMS
from simulator.experiment import Job, Pool
from simulator.figures import SessionResult
from simulator.world import World

REPORT = Path(__file__).resolve().parents[3] / "lab" / "measured" / "published.json"


def is_short(claim: Claim) -> bool:
    """Whether a claim has a bound and takes seconds, not a minute."""
    num_tokens = sum(world.tokens * world.clients for _, world in claim.jobs)
    return claim.within is not None and num_tokens <= 10_000


SHORT = tuple(filter(is_short, CLAIMS))


@pytest.mark.slow
@pytest.mark.parametrize("claims", [SHORT, pytest.param(CLAIMS, marks=pytest.mark.soak)])
def test_claims_hold_within_their_bounds_and_are_in_the_report(claims: tuple[Claim, ...]) -> None:
    """`forerun simulate published --json > lab/measured/published.json` makes the report."""
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    told = {(each["system"], each["quantity"]): each["ours"] for each in report}
    with Pool(1) as pool:
        for each in compare(claims, pool):
            name = (each.claim.system, each.claim.quantity)
            assert each.holds is not False, f"{name}: claimed {each.claim.figure:.4g}, found {each.ours:.4g}"
            assert each.ours == pytest.approx(told[name], abs=1e-4), name


def test_a_job_that_two_claims_share_runs_once() -> None:
    jobs = seeds("off", World(tokens=8), 2)
    ran = list[Job]()

    class Counting(Pool):
        def map(self, jobs: Iterable[Job], told: object = None) -> Iterator[list[SessionResult]]:
            ran.extend(jobs := list(jobs))
            return super().map(jobs)

    claims = [Claim("system", "tokens", 8.0, lambda found: len(found[0][0].tokens), jobs) for _ in range(2)]
    assert [each.difference for each in compare(claims, Counting(1))] == [0.0, 0.0]
    assert ran == list(jobs)


def test_the_acceptance_is_found_that_gives_a_figure() -> None:
    assert fitted_acceptance(lambda chance: 10.0 - 4.0 * chance, 7.0) == pytest.approx(0.75)
