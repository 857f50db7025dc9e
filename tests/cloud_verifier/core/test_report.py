"""What a scheduler tells of sessions and steps is what they had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.report import Tally, Waits, count
from common.errors import Code, PeerError
from common.messages import Propose
from tests.cloud_verifier.core.bench import Bench, ask, chain, commits


def test_a_session_knows_what_it_has_had() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2)), now=1.0)
    tally = bench.scheduler.sessions[1].tally
    bench.propose(1, chain(3, 4, 9, anchor=1, logprob=0.0), now=1.0)
    bench.end(bench.begin(2.0), 2.5)  # a prompt row, the tip and three drafts, two of them right
    bench.end(bench.begin(3.0), 3.25)  # the bare tip
    assert (tally.opened_at, tally.began_at) == (1.0, 2.0)
    assert (tally.first_commit_at, tally.committed_at) == (2.5, 3.25)
    assert (tally.num_steps, tally.num_rows, tally.num_drafts, tally.num_won) == (2, 6, 3, 2)
    assert (tally.num_committed, tally.num_server_made) == (4, 2)
    assert not tally.resumed


def test_tips_without_drafts_and_tokens_of_the_verifier_are_counted() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2)
    bench.propose(2, chain(2, anchor=0, logprob=0.0))
    bench.step()
    counters = bench.scheduler.counters
    assert (counters.num_bare, counters.num_committed, counters.num_server_made) == (1, 3, 2)


def test_what_was_cached_and_what_was_written_before_is_told() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.step()
    bench.open(2, ask((1, 2, 3), committed=(4, 5)))
    tally = bench.scheduler.sessions[2].tally
    assert (tally.resumed, tally.num_cached) == (True, 3)
    assert (bench.scheduler.counters.num_opened, bench.scheduler.counters.num_resumed) == (2, 1)


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
    bench.open(3)
    scheduler.on_timer(10.0)
    assert scheduler.counters.num_refused == {"INVALID_ARGUMENT": 1, "DEADLINE_EXCEEDED": 2}
    scheduler.on_connect(6, 11.0)
    scheduler.drain(1.0, 11.0)
    scheduler.on_timer(12.0)
    assert scheduler.counters.num_refused["UNAVAILABLE"] == 1
    assert scheduler.counters.num_finished == {"UNAVAILABLE": 1}


def test_nodes_above_the_hard_limit_are_counted() -> None:
    bench = Bench(max_live_nodes=32)
    bench.open(1)
    bench.propose(1, chain(*([2] * 30), anchor=0))
    bench.propose(1, Propose((3,) * 9, bytes(9)))
    assert (bench.scheduler.counters.num_proposed, bench.scheduler.counters.num_dropped) == (39, 7)


def test_giving_way_is_counted_by_the_session_that_did() -> None:
    bench = Bench(num_slots=60, promised_text=4, max_nodes_per_session=4)
    for key in (1, 2):
        bench.open(key)
    preempted = list[int]()
    while bench.scheduler.sessions:
        preempted = [each.tally.num_preempted for each in bench.scheduler.sessions.values()] or preempted
        bench.step()
    assert bench.scheduler.room.num_preempted >= 1
    assert preempted[-1] >= 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_every_token_is_won_or_one_of_its_step(lengths: list[int]) -> None:
    tally = Tally(0.0, resumed=False)
    for length in lengths:
        tally.count_step(1.0, 5, 4, 1)
        tally.count_commit(length, length - 1, 1, 2.0)
    assert tally.num_committed == tally.num_won + tally.num_steps == sum(lengths)


@pytest.mark.parametrize("code", Code)
def test_a_name_is_counted_from_one(code: Code) -> None:
    counts: dict[str, int] = {}
    count(counts, code.value)
    count(counts, code.value)
    assert counts == {code.value: 2}


def test_what_is_told_is_what_is_sent() -> None:
    """Over a whole text: the tokens of the session's commits, and its rows of all steps."""
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    tally, num_tokens, num_rows = bench.scheduler.sessions[1].tally, 0, 0
    bench.propose(1, chain(4, 5, 9, 9, anchor=2))
    while bench.scheduler.sessions:
        plan = bench.begin()
        num_rows += plan.num_rows
        num_tokens += sum(len(commit.tokens) for commit in commits(bench.end(plan)))
    assert (tally.num_committed, tally.num_rows) == (num_tokens, num_rows)
    assert num_tokens == 40
