"""Laws of the scheduler: who is admitted, who gets into a step, what is told, and that nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.config import MAY_BE_NOTHING, SchedulerConfig
from cloud_verifier.core.effects import Effect, End, Reply
from cloud_verifier.core.target import StepResult
from common.acceptance import LOSSLESS, Acceptance, AcceptanceRule
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.messages import INITIAL_CREDIT, Close, Commit, Drain, Finish, FinishReason, Open, Opened, Propose
from tests.cloud_verifier.core.bench import Bench, ask, chain, commits, ends, rows, siblings


def check_free(bench: Bench) -> None:
    memory = bench.scheduler.memory
    assert memory.pool.num_free + memory.cache.num_slots == memory.num_slots
    assert (memory.num_reserved, memory.cache.num_locked) == (0, 0)
    assert bench.scheduler.idle


def finished(key: int, reason: FinishReason, position: int) -> list[Effect]:
    return [Reply(key, Finish(reason, position)), End(key)]


def test_what_the_operator_names_is_allowed_and_what_he_leaves_out_is_not() -> None:
    typical, block = (Acceptance(rule) for rule in (AcceptanceRule.TYPICAL, AcceptanceRule.BLOCK))
    open_to = Bench(rules=(*LOSSLESS, AcceptanceRule.TYPICAL))
    assert isinstance(open_to.open(1, replace(ask(), acceptance=typical))[0], Reply)
    assert isinstance(open_to.open(2, replace(ask(), acceptance=block))[0], Reply)
    strict = Bench(rules=(AcceptanceRule.COUPLED,))
    (end,) = strict.open(1, replace(ask(), acceptance=block))
    assert isinstance(end, End)
    assert "the acceptance rule block is not allowed on this verifier; it allows coupled" in str(end.error)


# Admission --------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Open, type[ForerunError], Code, str]] = {
    "model": (replace(ask(), model="other"), UserError, Code.NOT_FOUND, "'other' is not served here"),
    "fingerprint": (
        replace(ask(), fingerprint=b"\xff"),
        UserError,
        Code.FAILED_PRECONDITION,
        "fingerprint is ff, the target's 0a0b",
    ),
    "empty prompt": (ask(()), UserError, Code.INVALID_ARGUMENT, "the prompt is empty"),
    "prompt": (ask((1, 10)), UserError, Code.OUT_OF_RANGE, "prompt holds token id 10"),
    "committed": (ask(committed=(11,)), UserError, Code.OUT_OF_RANGE, "committed holds token id 11"),
    "negative": (ask((-1,)), UserError, Code.OUT_OF_RANGE, "prompt holds token id -1"),
    "bias": (ask(logit_bias=((12, 1.0),)), UserError, Code.OUT_OF_RANGE, "logit_bias holds token id 12"),
    "stop": (ask(stop_token_ids=(13,)), UserError, Code.OUT_OF_RANGE, "stop_token_ids holds token id 13"),
    "too long": (ask((1,) * 61), UserError, Code.OUT_OF_RANGE, "exceed the target's 100 positions"),
    "rule": (
        replace(ask(), acceptance=Acceptance(AcceptanceRule.TYPICAL)),
        UserError,
        Code.FAILED_PRECONDITION,
        "the lossy acceptance rule typical is not allowed on this verifier; it allows coupled, rej",
    ),
    "too much": (ask(committed=(1,) * 41), PeerError, Code.OUT_OF_RANGE, "41 committed tokens exceed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_open_that_cannot_be_served_is_refused_with_its_code(case: str) -> None:
    request, kind, code, words = REFUSED[case]
    bench = Bench()
    (end,) = ends(bench.open(1, request))
    assert type(end.error) is kind
    assert end.error.code is code
    assert words in str(end.error)
    check_free(bench)


def test_the_longest_text_is_admitted() -> None:
    assert isinstance(Bench().open(1, ask((1,) * 60))[0], Reply)


def test_a_model_may_be_named() -> None:
    assert Bench().open(1, replace(ask(), model="counter")) == [Reply(1, Opened(0, 128))]


def test_a_verifier_whose_sessions_are_taken_refuses_until_one_ends() -> None:
    bench = Bench(max_sessions=1)
    bench.open(1)
    (end,) = ends(bench.open(2))
    assert isinstance(end.error, CapacityError)
    assert "all 1 sessions" in str(end.error)
    bench.scheduler.on_close(1, None, 0.0)
    assert ends(bench.open(3)) == []


def test_a_session_is_admitted_only_if_its_worst_case_has_slots() -> None:
    bench = Bench(num_slots=150, max_nodes_per_session=32)
    bench.open(1)  # 1 + 40 + 32
    assert bench.scheduler.memory.num_reserved == 73
    bench.open(2)
    (end,) = ends(bench.open(3))
    assert isinstance(end.error, CapacityError)
    assert end.error.code is Code.RESOURCE_EXHAUSTED
    assert bench.scheduler.memory.num_reserved == 146
    assert list(bench.scheduler.sessions) == [1, 2]


def test_a_draining_verifier_admits_nobody_and_goes_on_with_those_it_has() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2)
    bench.scheduler.drain(1.5, 0.0)
    assert bench.effects() == [Reply(1, Drain(1_500_000)), Reply(2, Drain(1_500_000))]
    (end,) = ends(bench.open(3))
    assert isinstance(end.error, UnavailableError)
    assert end.error.code is Code.UNAVAILABLE
    assert len(commits(bench.step())) == 2


def test_a_second_open_ends_its_stream_and_no_other() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2)
    (end,) = ends(bench.open(1))
    assert end.session == 1
    assert isinstance(end.error, PeerError)
    assert end.error.code is Code.FAILED_PRECONDITION
    assert list(bench.scheduler.sessions) == [2]


@pytest.mark.parametrize(
    "message",
    [
        Propose((2,), b""),
        Propose((2,), b"\0", (0, 0)),
        Propose(seen_advance=1),
        chain(2, anchor=1),
        chain(2),
        chain(10, anchor=0),
        Propose((2, 3), bytes(2), (0, 9), 0),
    ],
)
@pytest.mark.parametrize("running", [False, True])
def test_a_malformed_propose_ends_its_session_and_no_other_notices(message: Propose, running: bool) -> None:
    alone, bench = Bench(), Bench()
    alone.open(2)
    bench.open(1)
    bench.open(2)
    plan = bench.begin() if running else None
    (end,) = ends(bench.propose(1, message))
    assert end.session == 1
    assert isinstance(end.error, PeerError)
    if plan is not None:
        assert commits(bench.end(plan)) == commits(alone.step())
    while bench.scheduler.sessions:
        assert commits(bench.step()) == commits(alone.step())
    check_free(bench)


def test_a_violation_ends_its_stream_opened_or_not() -> None:
    bench, error = Bench(), PeerError("no message at all")
    bench.open(1)
    for key in (1, 2):
        bench.scheduler.on_violation(key, error, 0.0)
        assert bench.effects() == [End(key, error)]
    check_free(bench)


def test_what_comes_for_a_session_that_is_over_is_ignored() -> None:
    bench = Bench()
    bench.open(1)
    bench.scheduler.on_close(1, Close(), 0.0)
    bench.effects()
    assert bench.propose(1, chain(77)) == []
    bench.scheduler.on_close(1, None, 0.0)
    bench.scheduler.on_close(2, Close(), 0.0)
    assert bench.effects() == []


# Fairness and budgets ---------------------------------------------------------------------------------


def test_the_least_recently_served_go_first_when_not_all_fit() -> None:
    bench = Bench(max_rows=2)
    for key in (1, 2, 3):
        bench.open(key)
    served = []
    for _ in range(4):
        plan = bench.begin()
        served.append([item.session for item in plan.items])
        bench.end(plan)
    assert served == [[1, 2], [3, 1], [2, 3], [1, 2]]


def test_every_tip_comes_before_any_draft() -> None:
    bench = Bench(max_rows=3)
    for key in (1, 2, 3):
        bench.open(key)
    bench.propose(1, chain(2, 3, 4, anchor=0, logprob=0.0))
    assert rows(bench.begin()) == {1: [1], 2: [1], 3: [1]}


def test_the_likeliest_nodes_of_all_sessions_fill_the_rest() -> None:
    bench = Bench(max_rows=5)
    bench.open(1)
    bench.open(2)
    bench.propose(1, siblings(0, t5=-0.5, t6=-2.0, t7=-3.0))
    bench.propose(2, siblings(0, t5=-1.0, t6=-1.5, t7=-4.0))
    assert rows(bench.begin()) == {1: [1, 5], 2: [1, 5, 6]}


def test_likeliness_is_that_of_the_whole_path_from_the_tip() -> None:
    bench = Bench(max_rows=3)
    bench.open(1)
    bench.propose(1, Propose((5, 6, 7), bytes((16, 16, 24)), (0, 1, 0), 0))  # 5: 1, 6 below 5: 2, 7: 1.5 nats
    assert rows(bench.begin()) == {1: [1, 5, 7]}


def test_one_session_has_no_more_rows_than_its_share() -> None:
    bench = Bench(max_nodes_per_session=3)
    bench.open(1)
    bench.open(2)
    bench.propose(1, chain(2, 3, 4, 5, anchor=0, logprob=0.0))
    bench.propose(2, chain(2, 3, anchor=0, logprob=-1.0))
    assert rows(bench.begin()) == {1: [1, 2, 3], 2: [1, 2, 3]}


def test_nodes_left_out_of_a_step_are_in_the_next() -> None:
    bench = Bench(max_nodes_per_session=2)
    bench.open(1)
    bench.propose(1, chain(2, 3, 4, anchor=0))
    assert commits(bench.step())[0].tokens == (2, 3)
    plan = bench.begin()
    assert rows(plan) == {1: [3, 4]}
    assert commits(bench.end(plan))[0].tokens == (4, 5)


def test_the_oldest_prompt_has_half_of_a_prefill_chunk_and_short_ones_the_rest() -> None:
    bench = Bench(prefill_chunk=6)
    bench.open(3, ask((1,) * 9), now=0.0)
    bench.open(2, ask((2,) * 8), now=1.0)
    bench.open(1, ask((6, 7)), now=2.0)
    first = bench.begin()
    assert rows(first) == {3: [1, 1, 1], 2: [2, 2], 1: [6, 7]}
    assert [commit.tokens for commit in commits(bench.end(first))] == [(8,)]
    assert rows(bench.begin()) == {3: [1] * 3, 2: [2] * 3, 1: [8]}


def test_a_prompt_that_fits_is_read_together_with_its_tip_and_its_drafts() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.propose(1, chain(4, 5, anchor=2))
    plan = bench.begin()
    assert rows(plan) == {1: [1, 2, 3, 4, 5]}
    (commit,) = commits(bench.end(plan))
    assert (commit.tokens, commit.evaluated, commit.server_made) == ((4, 5, 6), 3, 0b100)


def test_long_prompts_do_not_keep_others_from_their_tips() -> None:
    bench = Bench(prefill_chunk=2)
    bench.open(1, ask((1,) * 50))
    bench.open(2)
    for _ in range(5):
        assert [reply.start for reply in commits(bench.step())] == [len(bench.text(2))]


@given(
    nodes=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(0, 4), st.integers(0, 60)), max_size=60
    ),
    max_rows=st.integers(1, 24),
    share=st.integers(1, 9),
)
def test_a_row_stands_behind_the_row_above_it_and_no_budget_is_passed(
    nodes: list[tuple[int, int, int, int]], max_rows: int, share: int
) -> None:
    bench, sent = Bench(max_rows=max_rows, max_nodes_per_session=share), {1: 0, 2: 0, 3: 0}
    for key in sent:
        bench.open(key)
    for key, back, token, byte in nodes:
        delta = min(back, sent[key])
        bench.propose(key, Propose((token,), bytes([byte]), (delta,), None if delta else 0))
        sent[key] += 1
    plan = bench.begin()
    assert plan.num_rows <= max_rows
    for item in plan.items:
        assert 1 <= len(item.tokens) <= share
        parents, positions = item.parents.tolist(), item.positions.tolist()
        assert parents[0] == -1
        assert all(0 <= parent < row for row, parent in enumerate(parents) if row)
        assert all(positions[row] == positions[parents[row]] + 1 for row in range(1, len(parents)))
    bench.end(plan)


def test_nothing_to_do_is_no_step() -> None:
    bench = Bench()
    assert bench.scheduler.next_step(0.0) is None
    bench.open(1, ask(fill=False))
    assert bench.scheduler.next_step(0.0) is None


def test_one_step_runs_at_a_time() -> None:
    bench = Bench()
    bench.open(1)
    plan = bench.begin()
    bench.open(2)
    assert bench.scheduler.next_step(0.0) is None
    bench.end(plan)
    assert len(bench.begin().items) == 2


def test_a_step_nobody_began_is_our_own_fault() -> None:
    with pytest.raises(LocalError, match="had not begun"):
        Bench().scheduler.on_step_failed(LocalError("x"), 0.0)


# Commits ----------------------------------------------------------------------------------------------


def test_a_commit_tells_when_proposals_came_and_what_took_its_time() -> None:
    bench = Bench()
    bench.open(1, ask(fill=False), now=0.0)
    bench.propose(1, chain(2, anchor=0), now=1.0)
    bench.propose(1, chain(9), now=1.25)
    plan = bench.begin(1.5)
    assert bench.end(plan, 2.0) == [
        Reply(
            1,
            Commit(
                start=1,
                tokens=(2, 3),
                server_made=0b10,
                echo=2,
                hold_us=750_000,
                queue_us=500_000,
                compute_us=500_000,
                evaluated=3,
            ),
        )
    ]


def test_an_echo_without_news_is_zero_and_holds_nothing() -> None:
    bench = Bench()
    bench.open(1, now=0.0)
    bench.propose(1, Propose(), now=0.0)
    plan = bench.begin(0.25)
    bench.propose(1, Propose(), now=0.5)
    (first,) = commits(bench.end(plan, 1.0))
    assert (first.echo, first.hold_us, first.queue_us, first.compute_us) == (2, 500_000, 250_000, 750_000)
    (second,) = commits(bench.end(bench.begin(1.5), 1.75))
    assert (second.echo, second.hold_us, second.queue_us, second.compute_us) == (0, 0, 500_000, 250_000)


def test_credit_divides_the_budget_and_is_told_only_when_it_changed() -> None:
    bench = Bench(live_node_budget=100, max_live_nodes=64, min_credit=30)
    assert bench.open(1) == [Reply(1, Opened(0, 64))]
    assert [commit.credit for commit in commits(bench.step())] == [None]
    assert bench.open(2) == [Reply(2, Opened(0, 50))]
    assert [commit.credit for commit in commits(bench.step())] == [50, None]
    for key in (3, 4):
        assert bench.open(key)[0] == Reply(key, Opened(0, 33 if key == 3 else 30))
    assert [commit.credit for commit in commits(bench.step())] == [30, 30, 30, None]
    bench.scheduler.on_close(2, None, 0.0)
    bench.scheduler.on_close(3, None, 0.0)
    assert [commit.credit for commit in commits(bench.step())] == [50, 50]


def test_the_text_is_the_same_when_nodes_are_dropped() -> None:
    bench = Bench(max_live_nodes=INITIAL_CREDIT)
    bench.open(1)
    text = [(2 + i) % 10 for i in range(40)]
    bench.propose(1, chain(*text, anchor=0))
    session = bench.scheduler.sessions[1]
    assert (session.tree.num_speculative, session.arrivals.num_dropped) == (32, 8)
    told: list[int] = []
    while bench.scheduler.sessions:
        told += commits(bench.step())[0].tokens
    assert told == text
    check_free(bench)


# Ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "text", "reason"),
    [
        (ask((7,), ignore_eos=False), [8, 9, 0], FinishReason.STOP),
        (ask((7,), ignore_eos=False, stop_token_ids=(9,)), [8, 9], FinishReason.STOP),
        (ask((7,), stop_token_ids=(1,)), [8, 9, 0, 1], FinishReason.STOP),
        (ask((0,), ignore_eos=False, max_tokens=3), [1, 2, 3], FinishReason.LENGTH),
        (ask((7,), ignore_eos=False, max_tokens=3), [8, 9, 0], FinishReason.STOP),
        (ask((7,), committed=(8, 9), stop_token_ids=(1,)), [0, 1], FinishReason.STOP),
        (ask((7,), committed=(8, 9), max_tokens=4), [0, 1], FinishReason.LENGTH),
    ],
)
@pytest.mark.parametrize("drafted", [False, True])
def test_a_text_ends_where_it_should(
    request_: Open, text: list[int], reason: FinishReason, drafted: bool
) -> None:
    bench, told = Bench(), list[int]()
    begin = len(request_.prompt) + len(request_.committed) - 1
    assert bench.open(1, request_) == [Reply(1, Opened(begin, 128))]
    if drafted:
        bench.propose(1, chain(*text, anchor=begin))
    while not (effects := bench.step())[1:]:
        told += commits(effects)[0].tokens
    told += commits(effects)[0].tokens
    assert told == text
    assert effects[1:] == finished(1, reason, begin + len(text))
    check_free(bench)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ask((7,), committed=(8, 9, 0), ignore_eos=False), FinishReason.STOP),
        (ask((7,), committed=(8, 9), max_tokens=2), FinishReason.LENGTH),
    ],
)
def test_a_text_that_is_complete_is_opened_and_finished(request_: Open, reason: FinishReason) -> None:
    bench, position = Bench(), len(request_.committed)
    effects = bench.open(1, request_)
    assert effects == [Reply(1, Opened(position, 128)), *finished(1, reason, position)]
    check_free(bench)


def test_a_resumed_text_goes_on_as_if_nothing_had_happened() -> None:
    bench = Bench(prefill_chunk=2)
    bench.open(1, ask((1,) * 8, committed=(3, 4)))
    bench.propose(1, chain(5, anchor=9))
    assert bench.step() == []
    (commit,) = commits(bench.step())
    assert (commit.start, commit.tokens, commit.server_made) == (10, (5, 6), 0b10)


def test_a_close_is_answered_at_once_and_a_lost_stream_is_not() -> None:
    bench = Bench()
    for key in (1, 2):
        bench.open(key)
    bench.step()
    bench.scheduler.on_close(1, Close(), 0.0)
    assert bench.effects() == finished(1, FinishReason.CANCELLED, 1)
    bench.scheduler.on_close(2, None, 0.0)
    assert bench.effects() == []
    check_free(bench)


@pytest.mark.parametrize("goodbye", [Close(), None])
@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_ends_within_a_step_keeps_its_slots_until_it_is_over(
    goodbye: Close | None, fails: bool
) -> None:
    bench = Bench()
    bench.open(1)
    bench.step()
    bench.propose(1, chain(3, 4, anchor=1))
    plan = bench.begin()
    bench.scheduler.on_close(1, goodbye, 0.0)
    bench.effects()
    assert bench.scheduler.sessions == {}
    assert bench.scheduler.memory.pool.num_free == 1000 - 4
    assert not bench.scheduler.idle
    if fails:
        bench.scheduler.on_step_failed(LocalError("x"), 0.0)
        assert bench.effects() == []
    else:
        assert bench.end(plan) == []
    check_free(bench)


def test_a_slot_of_a_session_that_ended_within_a_step_is_not_given_to_another_meanwhile() -> None:
    bench = Bench(num_slots=73)
    bench.open(1)
    plan = bench.begin()
    bench.scheduler.on_close(1, None, 0.0)
    bench.effects()
    assert isinstance(ends(bench.open(2))[0].error, CapacityError)
    bench.end(plan)
    assert ends(bench.open(3)) == []


def test_a_failed_step_is_tried_again_session_by_session() -> None:
    bench, error = Bench(), LocalError("the engine is broken")
    bench.open(1)
    bench.open(2)
    bench.begin()
    bench.open(3)
    bench.scheduler.on_step_failed(error, 1.0)
    assert bench.effects() == []
    assert list(rows(bench.begin())) == [1]
    bench.scheduler.on_step_failed(error, 2.0)
    assert bench.effects() == [End(1, error)]
    plan = bench.begin()
    assert list(rows(plan)) == [2]
    assert commits(bench.end(plan))[0].tokens == (2,)
    assert sorted(rows(bench.begin())) == [2, 3]


def test_a_session_that_left_is_no_suspect() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2)
    bench.begin()
    bench.scheduler.on_step_failed(LocalError("the engine is broken"), 1.0)
    bench.scheduler.on_close(1, None, 1.0)
    assert list(rows(bench.begin())) == [2]


def test_a_failed_step_leaves_an_empty_propose_its_right() -> None:
    bench, error = Bench(), LocalError("the engine is broken")
    for key in (1, 2):
        bench.open(key, ask(fill=False))
        bench.propose(key, Propose())
    bench.begin()
    bench.scheduler.on_step_failed(error, 1.0)
    assert commits(bench.step())[0].tokens == (2,)
    assert commits(bench.step())[0].tokens == (2,)


def test_choices_that_do_not_fit_the_step_are_a_failed_step() -> None:
    bench = Bench()
    bench.open(1)
    bench.begin()
    bench.scheduler.on_step_done(StepResult((), ()), 1.0)
    (end,) = ends(bench.effects())
    assert "do not fit" in str(end.error)
    check_free(bench)


# Waiting ----------------------------------------------------------------------------------------------


def test_a_session_without_fill_goes_on_for_a_draft_or_an_empty_propose() -> None:
    bench = Bench()
    bench.open(1, ask(fill=False))
    bench.propose(1, Propose())
    assert commits(bench.step())[0].tokens == (2,)
    assert bench.scheduler.next_step(0.0) is None
    bench.propose(1, chain(3, anchor=1))
    assert commits(bench.step())[0].tokens == (3, 4)
    assert bench.scheduler.next_step(0.0) is None


def test_a_session_that_waits_too_long_ends_at_that_time() -> None:
    bench = Bench(idle=5.0)
    bench.open(1, ask(fill=False), now=10.0)
    bench.open(2, ask(fill=False), now=12.0)
    assert bench.scheduler.next_timer_at == 15.0
    bench.scheduler.on_timer(14.999)
    assert bench.effects() == []
    bench.scheduler.on_timer(15.0)
    (end,) = ends(bench.effects())
    assert end.session == 1
    assert isinstance(end.error, UnavailableError)
    assert end.error.code is Code.DEADLINE_EXCEEDED
    assert bench.scheduler.next_timer_at == 17.0


def test_a_propose_and_the_step_after_it_start_the_waiting_anew() -> None:
    bench = Bench(idle=5.0)
    bench.open(1, ask(fill=False), now=10.0)
    bench.propose(1, chain(2, anchor=0), now=11.0)
    plan = bench.begin(30.0)
    bench.scheduler.on_timer(31.0)
    bench.end(plan, 32.0)
    bench.scheduler.on_timer(36.9)
    assert bench.effects() == []
    assert bench.scheduler.next_timer_at == 37.0
    bench.scheduler.on_timer(37.0)
    assert [end.session for end in ends(bench.effects())] == [1]


def test_a_session_with_fill_waits_for_nobody() -> None:
    bench = Bench(idle=5.0)
    bench.open(1)
    assert bench.scheduler.next_timer_at is None
    bench.scheduler.on_timer(1e9)
    assert bench.effects() == []


@pytest.mark.parametrize("alone", [True, False])
def test_for_an_edge_that_does_not_read_nothing_is_evaluated_until_it_does(alone: bool) -> None:
    bench = Bench()
    bench.open(1)
    if not alone:
        bench.open(2)
    bench.step(1.0)
    plan = bench.begin(2.0)
    bench.scheduler.on_stalled(1, True, 2.5)
    bench.end(plan, 3.0)  # what runs is sent all the same
    assert len(bench.text(1)) == 2
    if alone:
        assert bench.scheduler.next_step(3.0) is None
    else:
        assert [item.session for item in bench.begin(3.0).items] == [2]
    bench.scheduler.on_stalled(1, False, 4.0)
    if alone:
        bench.step(4.0)
        assert bench.text(1) == [2, 3, 4]
    assert bench.scheduler.next_timer_at is None


def test_an_edge_that_never_reads_is_ended_and_its_slots_are_free() -> None:
    bench = Bench(stall_timeout=7.0)
    bench.open(1)
    bench.step(1.0)
    bench.scheduler.on_stalled(1, True, 2.0)
    assert bench.scheduler.look_ahead() is None
    assert bench.scheduler.next_timer_at == 9.0
    bench.scheduler.on_timer(9.0)
    (end,) = ends(bench.effects())
    assert str(end.error) == "what was sent has not been read for 7 s"
    assert bench.scheduler.idle
    bench.scheduler.on_stalled(1, False, 10.0)  # too late, and no matter


# Any sequence of inputs -------------------------------------------------------------------------------

INPUT = st.tuples(
    st.sampled_from(
        ["open", "open", "propose", "propose", "propose", "close", "lost", "step", "fail", "timer", "stall"]
    ),
    st.integers(0, 5),
    st.integers(0, 9),
    st.integers(-1, 6),
)


def apply_input(bench: Bench, kind: str, key: int, token: int, place: int, now: float) -> None:
    scheduler = bench.scheduler
    match kind:
        case "open":
            scheduler.on_open(key, ask((token,) * (1 + place % 4), fill=bool(place % 2), max_tokens=9), now)
        case "propose":
            scheduler.on_propose(key, Propose((token,) * 2, bytes(2), (max(place, 0), 1), place), now)
        case "close" | "lost":
            scheduler.on_close(key, Close() if kind == "close" else None, now)
        case "timer":
            scheduler.on_timer(now)
        case "stall":
            scheduler.on_stalled(key, bool(token % 2), now)
    scheduler.check_integrity()


@given(st.lists(INPUT, max_size=40))
def test_no_inputs_leak_a_slot_or_stall_a_session(inputs: list[tuple[str, int, int, int]]) -> None:
    bench = Bench(num_slots=200, prefill_chunk=2, max_rows=6, max_nodes_per_session=4)
    plan, keys = None, iter(range(1000))
    current = [next(keys) for _ in range(6)]  # a key is used for one stream only
    now = 0.0
    for kind, index, token, place in inputs:
        now += 400.0 if kind == "timer" and place == 0 else 1.0
        if kind == "open" and current[index] not in bench.scheduler.sessions:
            current[index] = next(keys)
        apply_input(bench, kind, current[index], token, place, now)
        if plan is not None and kind in ("step", "fail"):
            if kind == "step":
                bench.end(plan, now)
            else:
                bench.scheduler.on_step_failed(LocalError("x"), now)
            plan = None
        elif kind == "step":
            plan = bench.scheduler.next_step(now)
    if plan is not None:
        bench.end(plan, now)
    for _ in range(200):
        for key in bench.scheduler.sessions:
            bench.scheduler.on_stalled(key, False, now)
            bench.propose(key, Propose(), now)
        if bench.scheduler.sessions:
            bench.step(now)
    check_free(bench)


# Guesses ----------------------------------------------------------------------------------------------

ROUND = (1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2)
"""A prompt after which the counting engine repeats what stands there."""


def test_a_text_that_repeats_itself_is_committed_many_tokens_a_step_without_an_edge() -> None:
    bench, alone = Bench(recall=True), Bench()
    bench.open(1, ask(ROUND))
    alone.open(1, ask(ROUND))
    (commit,) = commits(bench.step())
    assert commit.tokens[:4] == (3, 4, 5, 6)
    assert commit.server_made == (1 << len(commit.tokens)) - 1, "none of them was the edge's"
    while bench.scheduler.sessions:
        bench.step()
    while alone.scheduler.sessions:
        alone.step()
    assert alone.scheduler.counters.num_steps == 40
    assert bench.scheduler.counters.num_steps < 12


def test_a_guess_that_the_edge_proposes_too_is_the_edges() -> None:
    bench = Bench(recall=True)
    bench.open(1, ask(ROUND))
    plan = bench.begin()
    bench.propose(1, chain(3, 4, anchor=11))
    (commit,) = commits(bench.end(plan))
    assert len(commit.tokens) > 3
    assert commit.server_made == (1 << len(commit.tokens)) - 1 & ~0b11


def test_guesses_take_nothing_of_the_edges_credit() -> None:
    bench = Bench(recall=True, max_live_nodes=32)
    bench.open(1, ask(ROUND))
    plan = bench.begin()
    session = bench.scheduler.sessions[1]
    assert session.tree.num_speculative > 0
    drafts = (5, *(6,) * 31)  # not what was guessed
    bench.propose(1, Propose(drafts, bytes(32), (0, *(1,) * 31), 11))
    assert session.arrivals.num_dropped == 0
    bench.propose(1, chain(5))
    assert session.arrivals.num_dropped == 1
    bench.end(plan)


def test_guesses_and_drafts_share_the_sessions_rows() -> None:
    bench = Bench(recall=True, max_nodes_per_session=4)
    bench.open(1, ask(ROUND))
    bench.propose(1, siblings(11, t5=-0.01, t6=-0.02))
    assert rows(bench.begin()) == {1: [*ROUND[:-1], 2, 5, 6, 3]}


def test_the_classic_scheme_is_not_helped() -> None:
    bench = Bench(recall=True)
    bench.open(1, ask(ROUND, fill=False))
    bench.propose(1, Propose())
    bench.step()
    assert bench.text(1) == [3]
    assert bench.scheduler.next_step(0.0) is None, "it waits for a draft"


def test_no_guess_reaches_beyond_the_text() -> None:
    bench = Bench(recall=True)
    bench.open(1, ask(ROUND, max_tokens=3))
    effects = bench.step()
    assert commits(effects)[0].tokens == (3, 4, 5)
    assert ends(effects)[0].error is None
    check_free(bench)


def first_step_of_a_text_like_anothers(shared_ngrams: int = 0, others: str = "") -> tuple[int, ...]:
    """What is committed at first where only another session's text tells what comes. `others` is the tenant
    of that one."""
    bench = Bench(recall=True, shared_ngrams=shared_ngrams)
    as_tenant(bench, 1, others, ask((1, 2)))
    while bench.scheduler.sessions:
        bench.step()
    bench.open(2, ask((3, 4, 5)))
    (commit,) = commits(bench.step())
    return commit.tokens


def test_no_session_is_quickened_by_anothers_text_unless_that_is_asked_for() -> None:
    """The pace of a session tells nothing of what others wrote."""
    assert first_step_of_a_text_like_anothers() == (6,)
    assert len(first_step_of_a_text_like_anothers(shared_ngrams=100)) > 1


def test_no_session_is_quickened_by_another_tenants_text_in_any_case() -> None:
    assert first_step_of_a_text_like_anothers(shared_ngrams=100, others="other") == (6,)


def test_a_resumed_text_is_remembered() -> None:
    bench = Bench(recall=True)
    bench.open(1, ask((1,), committed=(2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2)))
    (commit,) = commits(bench.step())
    assert commit.tokens[:2] == (3, 4)


# Settings ---------------------------------------------------------------------------------------------


def test_a_shared_table_needs_recall() -> None:
    with pytest.raises(UserError, match="shared_ngrams is 5; it must be 0, or above 0 with recall"):
        SchedulerConfig(shared_ngrams=5)


@pytest.mark.parametrize(
    "field", [f for f in SchedulerConfig.__dataclass_fields__ if f not in MAY_BE_NOTHING]
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_of_nothing_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{field} is {value}; it must be above 0"):
        SchedulerConfig(**{field: value})  # type: ignore[arg-type]  # a number for each


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match="min_credit 65 exceeds max_live_nodes 64"):
        SchedulerConfig(min_credit=65, max_live_nodes=64)


def test_what_an_edge_sends_before_it_is_told_its_credit_must_fit() -> None:
    with pytest.raises(UserError, match="max_live_nodes is 31; it must be at least 32"):
        SchedulerConfig(max_live_nodes=31)


# Memory -----------------------------------------------------------------------------------------------


def test_the_second_turn_of_a_chat_reads_only_what_is_new() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3, 4), max_tokens=5))
    while bench.scheduler.sessions:
        bench.step()
    bench.open(2, ask((1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1), max_tokens=5))
    assert rows(bench.begin()) == {2: [9, 1, 1]}, "the last token that was written was not evaluated"
    assert bench.scheduler.counters.num_cached_tokens == 8


def test_a_prompt_that_is_known_whole_is_answered_in_the_first_step() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.step()
    bench.open(2, ask((1, 2, 3)))
    assert rows(bench.begin()) == {1: [4], 2: [3]}


def test_another_tenant_reads_its_prompt_itself() -> None:
    bench = Bench()
    for key, tenant in enumerate("aab", start=1):
        bench.scheduler.on_open(key, ask((1, 2, 3)), 0.0, Caller(tenant))
        bench.effects()
        bench.step()
    assert bench.scheduler.counters.num_cached_tokens == 2


def test_a_prompt_that_broke_the_engine_is_not_cached() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.begin()
    bench.scheduler.on_step_failed(LocalError("not a number"), 0.0)
    assert bench.scheduler.memory.cache.num_slots == 0
    check_free(bench)


# Tenants ----------------------------------------------------------------------------------------------


def as_tenant(bench: Bench, key: int, tenant: str, request: Open | None = None) -> list[End]:
    bench.scheduler.on_open(key, request or ask(), 0.0, Caller(tenant))
    return ends(bench.effects())


def test_a_tenant_has_no_more_sessions_than_its_share() -> None:
    bench = Bench(max_sessions=4, max_tenant_share=0.5)
    assert as_tenant(bench, 1, "a") == as_tenant(bench, 2, "a") == []
    (end,) = as_tenant(bench, 3, "a")
    assert isinstance(end.error, CapacityError)
    assert "this tenant has 2 sessions here" in str(end.error)
    assert as_tenant(bench, 4, "b") == []


def test_a_tenant_holds_no_more_slots_than_its_share_but_one_session_in_any_case() -> None:
    bench = Bench(num_slots=100, max_tenant_share=0.5, max_nodes_per_session=16)
    assert as_tenant(bench, 1, "a") == []  # 57 slots
    (end,) = as_tenant(bench, 2, "a", ask(max_tokens=1))
    assert "holds 57 KV slots here and may hold 50" in str(end.error)


def test_what_a_tenant_proposed_in_vain_is_charged_to_it() -> None:
    bench = Bench()
    as_tenant(bench, 1, "a")
    as_tenant(bench, 2, "b")
    bench.propose(1, chain(9, 9, 9, anchor=0, logprob=0.0))
    bench.step()
    tenants = bench.scheduler.tenants
    assert (tenants.get("a").num_wasted, tenants.get("b").num_wasted) == (3, 0)
    assert (tenants.get("a").service, tenants.get("b").service) == (4, 1)


def test_rows_of_a_session_that_left_during_its_step_are_charged_all_the_same() -> None:
    """Else who leaves in time would have everything for nothing."""
    bench = Bench()
    as_tenant(bench, 1, "a")
    as_tenant(bench, 2, "a")
    bench.propose(1, chain(9, 9, 9, anchor=0, logprob=0.0))
    plan = bench.begin()
    bench.scheduler.on_close(1, None, 0.0)
    bench.end(plan)
    tenant = bench.scheduler.tenants.get("a")
    assert (tenant.service, tenant.num_wasted, tenant.num_sessions) == (4 + 1, 3, 1)


# Time -------------------------------------------------------------------------------------------------


def test_a_stream_without_an_open_is_ended() -> None:
    bench = Bench()
    bench.scheduler.on_connect(1, 5.0)
    assert bench.scheduler.next_timer_at == 15.0
    bench.scheduler.on_timer(15.0)
    (end,) = ends(bench.effects())
    assert isinstance(end.error, PeerError)
    assert end.error.code is Code.DEADLINE_EXCEEDED


def test_a_stream_that_opened_left_or_broke_a_rule_is_no_longer_awaited() -> None:
    bench = Bench()
    for key in (1, 2, 3):
        bench.scheduler.on_connect(key, 0.0)
    bench.open(1)
    bench.scheduler.on_close(2, None, 1.0)
    bench.scheduler.on_violation(3, PeerError("x"), 1.0)
    bench.effects()
    assert bench.scheduler.next_timer_at is None


def test_nothing_is_evaluated_for_a_caller_that_waits_no_longer() -> None:
    bench = Bench()
    bench.scheduler.on_open(1, ask(), 0.0, Caller(deadline_at=5.0))
    bench.open(2)
    bench.effects()
    assert rows(bench.begin(5.0)) == {2: [1]}
    assert bench.scheduler.next_timer_at == 5.0
    bench.scheduler.on_timer(5.0)
    (end,) = ends(bench.effects())
    assert (end.session, end.error.code if end.error else None) == (1, Code.DEADLINE_EXCEEDED)


def test_a_call_whose_deadline_has_passed_is_not_admitted() -> None:
    bench = Bench()
    bench.scheduler.on_open(1, ask(), 5.0, Caller(deadline_at=5.0))
    (end,) = ends(bench.effects())
    assert end.error is not None
    assert end.error.code is Code.DEADLINE_EXCEEDED
    assert bench.scheduler.counters.num_refused == {"DEADLINE_EXCEEDED": 1}


def test_after_its_grace_a_drained_verifier_ends_who_is_still_here() -> None:
    bench = Bench()
    bench.scheduler.on_connect(7, 0.0)
    bench.open(1)
    bench.scheduler.drain(2.0, 10.0)
    bench.effects()
    assert bench.scheduler.next_timer_at == 10.0, "a stream waits for its Open"
    bench.scheduler.on_timer(12.0)
    assert {end.session: type(end.error) for end in ends(bench.effects())} == {
        7: PeerError,
        1: UnavailableError,
    }
    check_free(bench)


def test_who_is_refused_is_told_when_to_come_again() -> None:
    """As often as a session ends here, one may begin."""
    bench = Bench(max_sessions=1)
    for key in range(1, 4):
        bench.open(key, now=10.0 * key)
        bench.scheduler.on_close(key, None, 10.0 * key + 4.0)
    bench.open(4, now=40.0)
    (end,) = ends(bench.open(5, now=41.0))
    assert isinstance(end.error, CapacityError)
    assert end.error.retry_after == 10.0


# Reports ----------------------------------------------------------------------------------------------


def test_a_step_tells_what_it_was() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2)), now=1.0)
    bench.open(2, ask((5,)), now=2.0)
    bench.propose(2, chain(6, 9, anchor=0, logprob=0.0), now=2.0)
    bench.end(bench.begin(3.0), 3.5)
    report = bench.scheduler.ledger.last_step
    assert report is not None
    assert (report.began_at, report.duration, report.queue_times) == (3.0, 0.5, (2.0, 1.0))
    assert (report.num_tips, report.num_drafts, report.num_prefilled, report.num_committed) == (2, 2, 1, 3)
    counters = bench.scheduler.counters
    assert (counters.num_evaluated, counters.num_committed, counters.num_drafts, counters.num_won) == (
        4,
        3,
        2,
        1,
    )
    assert counters.won_by_depth == [1]


def test_refusals_and_ends_are_counted_by_reason() -> None:
    bench = Bench()
    bench.open(1, replace(ask(), model="other"))
    bench.open(2)
    bench.scheduler.on_close(2, Close(), 0.0)
    bench.open(3)
    bench.scheduler.on_close(3, None, 0.0)
    bench.open(4)
    bench.propose(4, chain(2))
    assert bench.scheduler.counters.num_refused == {"NOT_FOUND": 1}
    assert bench.scheduler.counters.num_finished == {"CANCELLED": 1, "LOST": 1, "INVALID_ARGUMENT": 1}


# Memory of the engine ---------------------------------------------------------------------------------


def test_a_step_without_memory_is_tried_again_in_smaller_ones_and_nobody_is_lost() -> None:
    """An engine that has memory for three rows."""
    bench = Bench()
    for key in range(1, 7):
        bench.open(key, ask((key, key + 1)))
    sizes, now = list[int](), 0.0
    while bench.scheduler.sessions:
        plan, now = bench.begin(now), now + 1.0
        sizes.append(plan.num_rows)
        if plan.num_rows > 3:
            bench.scheduler.on_step_failed(CapacityError("no memory"), now)
            assert ends(bench.effects()) == []
        else:
            assert all(end.error is None for end in ends(bench.end(plan, now)))
    assert sizes[:3] == [12, 6, 3]
    assert bench.scheduler.counters.num_finished == {"LENGTH": 6}
    check_free(bench)


def test_a_row_that_never_fits_ends_its_session() -> None:
    bench = Bench()
    bench.open(1)
    bench.begin()
    bench.scheduler.on_step_failed(CapacityError("no memory"), 0.0)
    (end,) = ends(bench.effects())
    assert isinstance(end.error, CapacityError)
    check_free(bench)
