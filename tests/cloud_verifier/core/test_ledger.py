"""What a scheduler tells of sessions, steps and margins is what they had."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepResult
from cloud_verifier.core.ledger import NearTies, Waits
from common.errors import PeerError
from tests.cloud_verifier.core.bench import Bench, ask, chain, count, siblings


def test_a_step_tells_how_long_each_had_waited_for_its_tokens() -> None:
    bench = Bench()
    bench.open(1, now=1.0)
    bench.end(bench.begin(2.0), 3.0)
    bench.open(2, now=3.5)
    bench.open(3, ask(committed=(2, 3)), now=3.75)
    bench.end(bench.begin(4.0), 5.0)
    assert bench.scheduler.ledger.last_step is not None
    waits = bench.scheduler.ledger.last_step.waits
    assert (waits.first, waits.later, waits.resumed) == ([1.5], [2.0], [1.25])


def test_a_step_tells_what_it_was() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2)), now=1.0)
    bench.open(2, ask((5,)), now=2.0)
    bench.propose(2, chain(6, 9, anchor=0, logprob=0.0), now=2.0)
    bench.end(bench.begin(3.0), 3.5)
    report, counters = bench.scheduler.ledger.last_step, bench.scheduler.counters
    assert report is not None
    assert (report.began_at, report.duration, report.queue_times) == (3.0, 0.5, (2.0, 1.0))
    row = 0.00005  # and a third would bring a tip and a draft, as the two sessions have on average
    assert bench.scheduler.turn == pytest.approx(1.5 + 0.5 + 2 * row, abs=1e-12)
    assert (report.num_tips, report.num_drafts, report.num_prefilled, report.num_committed) == (2, 2, 1, 3)
    assert (counters.num_evaluated, counters.num_committed, counters.num_drafts) == (4, 3, 2)
    assert (counters.num_won, counters.won_by_depth) == (1, [1])


def test_an_idle_verifier_tells_a_bare_step_whatever_its_last_sessions_waited() -> None:
    bench = Bench()
    assert bench.scheduler.turn is None
    bench.open(1, now=1.1)
    bench.open(2, now=1.1)
    for second in range(1, 5):
        bench.end(bench.begin(second + 0.5), second + 0.6)
    assert bench.scheduler.turn == pytest.approx(0.5 + 0.1, rel=0.2)
    for key in (1, 2):
        bench.scheduler.on_close(key, None, 5.0)
    assert bench.scheduler.turn == pytest.approx(0.1, rel=0.01)


def test_a_step_that_only_reads_brings_nobody_a_token() -> None:
    bench = Bench(prefill_chunk=2)
    bench.open(1, ask((1,) * 12))
    bench.step()
    assert bench.scheduler.ledger.last_step is not None
    assert bench.scheduler.ledger.last_step.waits == Waits()
    assert bench.scheduler.sessions[1].tally.num_steps == 0
    assert bench.scheduler.sessions[1].tally.num_rows == 8


def test_streams_that_never_had_a_session_are_counted_by_the_status_that_they_got() -> None:
    bench = Bench()
    scheduler = bench.scheduler
    for key in range(1, 6):
        scheduler.on_connect(key, 0.0)
    scheduler.on_violation(1, PeerError("no message"), 0.0)
    scheduler.on_violation(1, PeerError("and another"), 0.0)
    scheduler.on_close(2, None, 0.0)  # went away by itself
    bench.open(7)
    scheduler.on_close(7, None, 0.0)
    bench.open(3)
    scheduler.on_timer(10.0)
    assert scheduler.counters.num_refused == {"INVALID_ARGUMENT": 1, "DEADLINE_EXCEEDED": 2}
    scheduler.on_connect(6, 11.0)
    scheduler.drain(1.0, 11.0)
    scheduler.on_timer(12.0)
    assert scheduler.counters.num_refused["UNAVAILABLE"] == 1
    assert scheduler.counters.num_finished == {"LOST": 1, "UNAVAILABLE": 1}


def some(*margins: float) -> np.ndarray:
    return np.array(margins, np.float32)


@given(st.lists(st.lists(st.floats(0, 100, width=32), max_size=5), max_size=6), st.floats(0, 3))
def test_near_ties_are_counted_and_the_smallest_margin_is_kept(
    batches: list[list[float]], temperature: float
) -> None:
    counter = NearTies(0.01)
    for batch in batches:
        counter.note(some(*batch), temperature)
    scaled = [margin * (temperature or 1.0) for batch in batches for margin in batch]
    assert counter.num_near_ties == sum(1 for margin in scaled if margin < 0.01)
    assert counter.smallest == min(scaled, default=math.inf)


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
    assert bench.scheduler.ledger.near_ties.smallest == 0.125


def test_sessions_of_one_step_count_by_their_own_temperature() -> None:
    bench = Bench()
    bench.open(1, ask((1,)))
    bench.open(2, ask((2,), temperature=0.5))
    step(bench, {1: 0.75, 2: 1.0})
    assert bench.scheduler.ledger.near_ties.smallest == 0.5
