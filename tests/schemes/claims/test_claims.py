"""Published claims: each asked bound holds, and a job that two claims share runs once."""

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


def is_short(claim: Claim) -> bool:
    """Whether a claim takes seconds, not a minute."""
    jobs = (job for some in (claim.jobs, *claim.others) for job in some)
    return sum(world.tokens * world.clients for _, world in jobs) <= 12_000


NOT_REPRODUCED = ("PEARL",)
"""Systems whose claims no setting of their papers gives; each remark says why."""

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
            assert each.holds == (name[0] not in NOT_REPRODUCED), f"{name}: {each.ours:.4g}"
            assert each.ours == pytest.approx(told[name], abs=1e-4), name


def test_a_claim_without_a_bound_holds_if_it_points_the_same_way() -> None:
    def found(figure: float, ours: float, even: float = 1.0) -> bool:
        return Comparison(Claim("system", "quantity", figure, lambda results: ours, even=even), ours).holds

    assert found(1.3, 1.01)
    assert not found(1.3, 0.99)
    assert found(0.9, 0.99)
    assert not found(0.9, 1.01)
    assert found(20.0, 0.5, even=0.0)
    assert not found(20.0, -0.5, even=0.0)
    assert not found(0.9, 1.0)
    claim = Claim("system", "quantity", 1.3, lambda results: 1.1)
    assert Comparison(claim, 1.1, (1.05, 1.2)).always_holds
    assert not Comparison(claim, 1.1, (0.99,)).always_holds


def test_other_settings_give_the_range() -> None:
    jobs = tuple(seeds("off", World(tokens=tokens), 1) for tokens in (8, 4, 16))
    claim = Claim("system", "tokens", 8.0, lambda found: len(found[0][0].tokens), jobs[0], others=jobs[1:])
    (comparison,) = compare([claim], Pool(1))
    assert (comparison.ours, comparison.range) == (8.0, (4.0, 16.0))
    assert comparison.difference is None


def test_a_job_that_two_claims_share_runs_once() -> None:
    jobs = seeds("off", World(tokens=8), 2)
    ran = list[Job]()

    class Counting(Pool):
        def map(self, jobs: Iterable[Job], told: object = None) -> Iterator[list[SessionResult]]:
            ran.extend(jobs := list(jobs))
            return super().map(jobs)

    claims = [
        Claim("system", "tokens", 8.0, lambda found: len(found[0][0].tokens), jobs, 0.1) for _ in range(2)
    ]
    assert [each.difference for each in compare(claims, Counting(1))] == [0.0, 0.0]
    assert ran == list(jobs)


def test_the_acceptance_is_found_that_gives_a_figure() -> None:
    assert fitted_acceptance(lambda chance: 10.0 - 4.0 * chance, 7.0) == pytest.approx(0.75)
