"""Every committed choice counts once, in logits, and no other choice does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.margins import BOUNDS, MarginCounter
from cloud_verifier.core.target import StepResult
from tests.cloud_verifier.core.bench import Bench, ask, chain, count, siblings


def some(*margins: float) -> np.ndarray:
    return np.array(margins, np.float32)


@given(st.lists(st.lists(st.floats(0, 100, width=32), max_size=5), max_size=6), st.floats(0, 3))
def test_counts_add_up_and_the_smallest_is_kept(batches: list[list[float]], temperature: float) -> None:
    counter = MarginCounter(0.01)
    for batch in batches:
        counter.note(some(*batch), temperature)
    scaled = [margin * (temperature or 1.0) for batch in batches for margin in batch]
    assert counter.num_choices == len(scaled) == sum(counter.counts)
    assert counter.num_near_ties == sum(1 for margin in scaled if margin < 0.01)
    assert counter.smallest == min(scaled, default=math.inf)
    for bound, upto in zip(BOUNDS, np.cumsum(counter.counts), strict=False):
        assert upto == sum(1 for margin in scaled if margin < bound)


def test_a_sampled_margin_is_told_in_logits() -> None:
    counter = MarginCounter(1e-4)
    counter.note(some(1e-4), 0.5)
    counter.note(some(1e-4), 2.0)
    assert counter.num_near_ties == 1
    assert counter.smallest == pytest.approx(5e-5)


def test_a_choice_without_a_runner_up_is_far_from_a_tie() -> None:
    counter = MarginCounter(0.1)
    counter.note(some(math.inf), 1.0)
    assert (counter.num_choices, counter.num_near_ties, counter.counts[-1]) == (1, 0, 1)


def step(bench: Bench, margins: dict[int, float]) -> None:
    """A step whose choices have these margins, by the token of their row."""
    plan = bench.begin()
    found = tuple(some(*(margins[token] for token in item.tokens.tolist())) for item in plan.items)
    bench.scheduler.on_step_done(StepResult(tuple(count(item) for item in plan.items), found), 0.0)
    bench.effects()


def test_only_choices_on_the_committed_path_count() -> None:
    """The tip, 1, writes 2; of its children 5 and 2 the second is right, and so is 3 below that; 8 is not."""
    bench = Bench()
    bench.open(1, ask((1,)))
    bench.propose(1, siblings(0, t5=-0.1, t2=-0.2))
    bench.propose(1, chain(3, 8, anchor=None))
    step(bench, {1: 0.5, 2: 0.25, 3: 0.125, 5: 0.01, 8: 0.02})
    assert bench.text(1) == [2, 3, 4]
    assert bench.scheduler.ledger.margins.num_choices == 3
    assert bench.scheduler.ledger.margins.smallest == 0.125


def test_a_token_that_ends_the_text_brings_no_choice_of_its_own() -> None:
    """The draft holds the end token and was evaluated; what the target would write after it is not text."""
    bench = Bench(eos=(3,))
    bench.open(1, ask((1,), ignore_eos=False))
    bench.propose(1, chain(2, 3, anchor=0))
    step(bench, {1: 0.5, 2: 0.25, 3: 1e-9})
    assert bench.scheduler.ledger.margins.num_choices == 2
    assert bench.scheduler.ledger.margins.smallest == 0.25


def test_sessions_of_one_step_count_by_their_own_temperature() -> None:
    bench = Bench()
    bench.open(1, ask((1,)))
    bench.open(2, ask((2,), temperature=0.5))
    step(bench, {1: 0.75, 2: 1.0})
    assert bench.scheduler.ledger.margins.smallest == 0.5
    assert bench.scheduler.ledger.margins.num_choices == 2


def test_margins_that_do_not_fit_the_step_fail_it() -> None:
    bench = Bench()
    bench.open(1, ask((1,)))
    plan = bench.begin()
    choices = tuple(count(item) for item in plan.items)
    bench.scheduler.on_step_done(StepResult(choices, (some(),)), 0.0)
    assert bench.scheduler.counters.num_failed_steps == 1
