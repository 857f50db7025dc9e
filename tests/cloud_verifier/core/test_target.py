"""Law: a plan counts the rows and the choices of all its items."""

from __future__ import annotations

from cloud_verifier.core.target import StepPlan
from tests.cloud_verifier.core.bench import Bench, ask, chain


def test_a_plan_counts_rows_and_outputs() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.open(2)
    bench.propose(2, chain(2, 3, anchor=0))
    plan = bench.begin()
    assert (plan.num_rows, plan.num_outputs) == (3 + 3, 1 + 3)
    assert (StepPlan(()).num_rows, StepPlan(()).num_outputs) == (0, 0)
