"""Laws of the scheduler: who is admitted, who gets into a step, what is told, and that nothing leaks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core import node_credit
from cloud_verifier.core.admission import Caller
from cloud_verifier.core.alarms import SLACK, Alarms
from cloud_verifier.core.effects import Effect, End, Reply
from cloud_verifier.core.engine_protocol import StepResult
from cloud_verifier.core.limits import SchedulerConfig
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.messages import Close, Commit, Drain, Finish, FinishReason, Open, Opened, Propose
from tests import wording
from tests.cloud_verifier.core.bench import Bench, ask, chain, commits, ended, ends, rows, siblings


def check_free(bench: Bench) -> None:
    memory = bench.scheduler.memory
    assert memory.pool.num_free + memory.cache.num_slots == memory.num_slots
    assert (memory.num_reserved, memory.cache.num_locked) == (0, 0)
    assert bench.scheduler.idle


def finished(key: int, reason: FinishReason, position: int) -> list[Effect]:
    return [Reply(key, Finish(reason, position)), End(key)]


# Admission --------------------------------------------------------------------------------------------


def under(rule: AcceptanceRule) -> Open:
    return replace(ask(), acceptance=Acceptance(rule))


REFUSED: dict[str, tuple[Open, type[ForerunError], Code]] = {
    "model": (replace(ask(), model="other"), UserError, Code.NOT_FOUND),
    "fingerprint": (replace(ask(), fingerprint=b"\xff"), UserError, Code.FAILED_PRECONDITION),
    "empty prompt": (ask(()), UserError, Code.INVALID_ARGUMENT),
    "prompt": (ask((1, 10)), UserError, Code.OUT_OF_RANGE),
    "committed": (ask(committed=(11,)), UserError, Code.OUT_OF_RANGE),
    "negative": (ask((-1,)), UserError, Code.OUT_OF_RANGE),
    "bias": (ask(logit_bias=((12, 1.0),)), UserError, Code.OUT_OF_RANGE),
    "stop": (ask(stop_token_ids=(13,)), UserError, Code.OUT_OF_RANGE),
    "too long": (ask((1,) * 61), UserError, Code.OUT_OF_RANGE),
    "rule": (under(AcceptanceRule.TYPICAL), UserError, Code.FAILED_PRECONDITION),
    "greedy rule": (under(AcceptanceRule.JUDGE), UserError, Code.FAILED_PRECONDITION),
    "second look": (under(AcceptanceRule.REFLECTIVE), UserError, Code.FAILED_PRECONDITION),
    "too much": (ask(committed=(1,) * 41), PeerError, Code.OUT_OF_RANGE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_open_that_cannot_be_served_is_refused_with_its_code(case: str) -> None:
    request, kind, code = REFUSED[case]
    bench = Bench()
    (end,) = ends(bench.open(1, request))
    assert type(end.error) is kind
    assert end.error.code is code
    wording.keep(str(end.error))
    check_free(bench)


def test_the_longest_text_is_admitted_and_a_model_may_be_named() -> None:
    assert isinstance(Bench().open(1, ask((1,) * 60))[0], Reply)
    assert Bench().open(1, replace(ask(), model="counter")) == [Reply(1, Opened(0, 128))]


def test_a_draining_verifier_admits_nobody_and_goes_on_with_those_it_has() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2)
    bench.scheduler.drain(1.5, 0.0)
    assert bench.effects() == [Reply(1, Drain(1_500_000)), Reply(2, Drain(1_500_000))]
    assert ended(bench.open(3)) == (3, UnavailableError, Code.UNAVAILABLE)
    assert len(commits(bench.step())) == 2


def test_readiness_says_why_nobody_should_come_and_does_not_flutter() -> None:
    bench = Bench(max_sessions=1)
    scheduler, memory = bench.scheduler, bench.scheduler.memory
    seen = list[tuple[int, bool]]()
    for left in (30, 19, 30, 49, 50, 20):
        lease = memory.open("", (), 1000 - left)
        seen.append((left, scheduler.why_not_ready() == ""))
        memory.close(lease, ())
    assert seen == [(30, True), (19, False), (30, False), (49, False), (50, True), (20, True)]
    bench.open(1)
    assert scheduler.why_not_ready().startswith("all 1 sessions")
    scheduler.drain(1.0, 0.0)
    assert scheduler.why_not_ready().startswith("it is draining")


def test_a_second_open_ends_its_stream_and_no_other() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2)
    assert ended(bench.open(1)) == (1, PeerError, Code.FAILED_PRECONDITION)
    assert list(bench.scheduler.sessions) == [2]


@pytest.mark.parametrize(
    "message", [Propose((2,), b""), Propose(seen_advance=1), chain(2), chain(10, anchor=0)]
)
@pytest.mark.parametrize("running", [False, True])
def test_a_malformed_propose_ends_its_session_and_no_other_notices(message: Propose, running: bool) -> None:
    alone, bench = Bench(), Bench()
    alone.open(2)
    bench.open(1)
    bench.open(2)
    plan = bench.begin() if running else None
    assert ended(bench.propose(1, message))[:2] == (1, PeerError)
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


def test_a_prompt_that_fits_is_read_together_with_its_tip_and_its_drafts() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.propose(1, chain(4, 5, anchor=2))
    plan = bench.begin()
    assert rows(plan) == {1: [1, 2, 3, 4, 5]}
    (commit,) = commits(bench.end(plan))
    assert (commit.tokens, commit.evaluated, commit.server_made) == ((4, 5, 6), 3, 0b100)


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
    assert len(plan.items) == min(3, max_rows), "tips come before drafts"
    for item in plan.items:
        assert 1 <= len(item.tokens) <= share
        parents, positions = item.parents.tolist(), item.positions.tolist()
        assert parents[0] == -1
        assert all(0 <= parent < row for row, parent in enumerate(parents) if row)
        assert all(positions[row] == positions[parents[row]] + 1 for row in range(1, len(parents)))
    bench.end(plan)


def test_one_step_runs_at_a_time_and_none_where_nothing_is_to_do() -> None:
    bench = Bench()
    bench.open(1, ask(fill=False))
    assert bench.scheduler.next_step(0.0) is None
    bench.open(2)
    plan = bench.begin()
    bench.open(3)
    assert bench.scheduler.next_step(0.0) is None
    bench.end(plan)
    assert rows(bench.begin()) == {2: [2], 3: [1]}


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


def test_credit_divides_the_budget_and_is_told_only_when_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_credit, "LIVE_NODE_BUDGET", 100)
    monkeypatch.setattr(node_credit, "MIN_CREDIT", 30)
    bench = Bench(max_live_nodes=64)
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


# Ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "text", "reason"),
    [
        (ask((7,), ignore_eos=False), [8, 9, 0], FinishReason.STOP),
        (ask((7,), ignore_eos=False, stop_token_ids=(9,)), [8, 9], FinishReason.STOP),
        (ask((7,), stop_token_ids=(1,)), [8, 9, 0, 1], FinishReason.STOP),
        (ask((7, 8), stop_token_ids=(8,), max_tokens=2), [9, 0], FinishReason.LENGTH),  # one in the prompt
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


def test_a_failed_step_leaves_an_empty_propose_its_right() -> None:
    bench, error = Bench(), LocalError("the engine is broken")
    for key in (1, 2):
        bench.open(key, ask(fill=False))
        bench.propose(key, Propose())
    bench.begin()
    bench.scheduler.on_step_failed(error, 1.0)
    assert commits(bench.step())[0].tokens == (2,)
    assert commits(bench.step())[0].tokens == (2,)


@pytest.mark.parametrize("choices", [(), (np.zeros(1, np.int32),)], ids=["no choices", "no margins"])
def test_choices_that_do_not_fit_the_step_are_a_failed_step(choices: tuple[np.ndarray, ...]) -> None:
    bench = Bench()
    bench.open(1)
    bench.begin()
    bench.scheduler.on_step_done(StepResult(choices, ()), 1.0)
    assert ended(bench.effects())[:2] == (1, LocalError)
    assert bench.scheduler.counters.num_failed_steps == 1
    check_free(bench)


# Waiting ----------------------------------------------------------------------------------------------


def test_a_session_that_waits_too_long_ends_at_that_time() -> None:
    bench = Bench(idle=5.0)
    bench.open(1, ask(fill=False), now=10.0)
    bench.open(2, ask(fill=False), now=12.0)
    assert bench.scheduler.next_timer_at == 15.0
    bench.scheduler.on_timer(14.999)
    assert bench.effects() == []
    bench.scheduler.on_timer(15.0)
    assert ended(bench.effects()) == (1, UnavailableError, Code.DEADLINE_EXCEEDED)
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


def first_step_of_a_text_like_anothers(shared_texts: int = 0, others: str = "") -> tuple[int, ...]:
    """What is committed at first where only another session's text tells what comes. `others` is the tenant
    of that one."""
    bench = Bench(recall=True, shared_texts=shared_texts)
    ends(bench.open(1, ask((1, 2)), tenant=others))
    while bench.scheduler.sessions:
        bench.step()
    bench.open(2, ask((3, 4, 5)))
    (commit,) = commits(bench.step())
    return commit.tokens


def test_no_session_is_quickened_by_anothers_text_unless_that_is_asked_for() -> None:
    """The pace of a session tells nothing of what others wrote."""
    assert first_step_of_a_text_like_anothers() == (6,)
    assert len(first_step_of_a_text_like_anothers(shared_texts=100)) > 1
    another = first_step_of_a_text_like_anothers(shared_texts=100, others="other")
    assert another == (6,), "of another tenant never"


def test_a_resumed_text_is_remembered() -> None:
    bench = Bench(recall=True)
    bench.open(1, ask((1,), committed=(2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2)))
    (commit,) = commits(bench.step())
    assert commit.tokens[:2] == (3, 4)


# Settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"shared_texts": 5},  # without recall
        {"max_live_nodes": 31},  # what an edge sends before it is told its credit must fit
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, int]) -> None:
    with wording.raises(UserError):
        SchedulerConfig(**limits)  # type: ignore[arg-type]  # fields vary by case


# Memory -----------------------------------------------------------------------------------------------


def test_an_edge_learns_how_much_of_its_prompt_was_cached() -> None:
    bench = Bench()

    def cached(key: int, *prompt: int, tenant: str = "") -> int:
        opened = bench.open(key, ask(prompt, max_tokens=1), tenant=tenant)[0]
        assert isinstance(opened, Reply)
        assert isinstance(opened.message, Opened)
        bench.step()
        return opened.message.cached

    assert cached(1, 5, 6, 7, 8) == 0
    assert cached(2, 5, 6, 7, 8) == 3, "the tip is always evaluated"
    assert cached(3, 5, 6, 9, 9) == 2
    assert cached(4, 5, 6, 7, 8, tenant="another") == 0


def test_a_prompt_that_broke_the_engine_is_not_cached() -> None:
    bench = Bench()
    bench.open(1, ask((1, 2, 3)))
    bench.begin()
    bench.scheduler.on_step_failed(LocalError("not a number"), 0.0)
    assert bench.scheduler.memory.cache.num_slots == 0
    check_free(bench)


# Tenants ----------------------------------------------------------------------------------------------


def test_rows_of_a_session_that_left_during_its_step_are_charged_all_the_same() -> None:
    """Else who leaves in time would have everything for nothing."""
    bench = Bench()
    ends(bench.open(1, tenant="a"))
    ends(bench.open(2, tenant="a"))
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
    assert ended(bench.effects()) == (1, UnavailableError, Code.DEADLINE_EXCEEDED)


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
    assert ended(bench.effects()) == (1, UnavailableError, Code.DEADLINE_EXCEEDED)


def test_a_call_whose_deadline_has_passed_is_not_admitted() -> None:
    bench = Bench()
    bench.scheduler.on_open(1, ask(), 5.0, Caller(deadline_at=5.0))
    assert ended(bench.effects()) == (1, UnavailableError, Code.DEADLINE_EXCEEDED)
    assert bench.scheduler.counters.num_refused == {"DEADLINE_EXCEEDED": 1}


def test_after_its_grace_a_drained_verifier_ends_who_is_still_here() -> None:
    bench = Bench()
    bench.scheduler.on_connect(7, 0.0)
    bench.open(1)
    bench.scheduler.drain(2.0, 10.0)
    bench.effects()
    assert bench.scheduler.next_timer_at == 10.0, "a stream waits for its Open"
    bench.scheduler.on_timer(12.0)
    assert {end.session: end.error and end.error.code for end in ends(bench.effects())} == {
        7: Code.DEADLINE_EXCEEDED,
        1: Code.UNAVAILABLE,
    }
    check_free(bench)


def test_who_finds_all_sessions_taken_is_told_when_to_come_again() -> None:
    """As often as a session ends here, one may begin."""
    bench = Bench(max_sessions=1)
    for key in range(1, 4):
        assert ends(bench.open(key, now=10.0 * key)) == []
        bench.scheduler.on_close(key, None, 10.0 * key + 4.0)
    bench.open(4, now=40.0)
    (end,) = ends(bench.open(5, now=41.0))
    assert isinstance(end.error, CapacityError)
    assert end.error.retry_after == 10.0
    wording.keep(str(end.error))


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
    assert ended(bench.effects())[:2] == (1, CapacityError)
    check_free(bench)


# Alarms ------------------------------------------------------------------------------------------------


def test_alarms_that_are_set_and_forgotten_take_no_memory() -> None:
    """As of streams that come and go while one stays, each with a deadline far away."""
    alarms = Alarms()
    alarms.set(0, 1.0)
    for key in range(1, 10_000):
        alarms.set(key, 1e9 + key)
        alarms.set(key, None)
    assert len(alarms) <= 2 + SLACK
    assert (alarms.next_at, alarms.due(2.0), alarms.next_at) == (1.0, [0], None)
