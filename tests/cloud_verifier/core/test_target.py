"""Law: a plan counts the rows and the choices of all its items."""

from __future__ import annotations

import numpy as np

from cloud_verifier.core.target import RowLogprobs, StepPlan
from common.messages import TokenLogprobs
from tests.cloud_verifier.core.bench import Bench, ask, chain


def test_a_plan_counts_rows_and_outputs() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.open(2)
    bench.propose(2, chain(2, 3, anchor=0))
    plan = bench.begin()
    assert (plan.num_rows, plan.num_outputs) == (3 + 3, 1 + 3)
    assert (StepPlan(()).num_rows, StepPlan(()).num_outputs) == (0, 0)


def test_logprobs_are_told_of_the_rows_whose_choices_became_text() -> None:
    half = np.array([-0.5, -1.5, -2.5], np.float32)
    rows = RowLogprobs(half, np.array([[3], [1], [2]], np.int32), np.array([[-0.25], [-1], [-2]], np.float32))
    assert rows.of([2, 0]) == (TokenLogprobs(-2.5, ((2, -2.0),)), TokenLogprobs(-0.5, ((3, -0.25),)))
    assert rows.of([]) == ()
