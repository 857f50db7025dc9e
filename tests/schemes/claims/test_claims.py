"""Published claims: each asked bound holds, and a job that two claims share runs once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from schemes.claims.runner import Claim, Comparison, compare, fitted_acceptance, seeds
from schemes.claims.table import CLAIMS
from simulator.experiment import Job, Pool
from simulator.figures import SessionResult
from simulator.world import World

REPORT = Path(__file__).resolve().parents[3] / "lab" / "measured" / "published.json"


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Comparison]:
    """All comparisons at once, as the command makes them: claims share their jobs."""
    with Pool(1) as pool:
        return {(each.claim.system, each.claim.quantity): each for each in compare(CLAIMS, pool)}


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.system}, {claim.quantity}")
def test_a_claim_holds_within_its_bound(claim: Claim, found: dict[tuple[str, str], Comparison]) -> None:
    comparison = found[claim.system, claim.quantity]
    assert comparison.holds is not False, f"claimed {claim.figure:.4g}, found {comparison.ours:.4g}"


@pytest.mark.slow
def test_the_report_is_what_is_found(found: dict[tuple[str, str], Comparison]) -> None:
    """`forerun simulate published --json > lab/measured/published.json` makes it."""
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    told = {(each["system"], each["quantity"]): each["ours"] for each in report}
    assert told == {key: pytest.approx(each.ours, abs=1e-4) for key, each in found.items()}


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
