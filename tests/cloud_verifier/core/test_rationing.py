"""Laws of quotas in the scheduler: a tenant is held to its own, at the door and in each step, texts are the
same, and nobody else notices."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.core.target import StepPlan, StepResult
from common.errors import CapacityError, Code, UnavailableError, UserError
from common.messages import Finish, Open
from tests.cloud_verifier.core.bench import VOCAB, Bench, ask, chain, count, ends, rows


def bench(quotas: Quotas, **limits: float) -> Bench:
    found = Bench(**limits)  # type: ignore[arg-type]  # fields vary by case
    found.scheduler.on_quotas(quotas, 0.0)
    return found


def only(tenant: str, **quota: float) -> Quotas:
    return Quotas(tenants={tenant: Quota(**quota)})  # type: ignore[arg-type]  # fields vary by case


def opens(found: Bench, key: int, tenant: str, request: Open | None = None, now: float = 0.0) -> list[End]:
    found.scheduler.on_open(key, request or ask(), now, Caller(tenant))
    return ends(found.effects())


# At the door ------------------------------------------------------------------------------------------


def test_a_tenant_has_no_more_sessions_than_its_quota() -> None:
    found = bench(only("a", max_sessions=2))
    assert opens(found, 1, "a") == opens(found, 2, "a") == []
    (end,) = opens(found, 3, "a")
    assert isinstance(end.error, CapacityError)
    assert end.error.retry_after is not None
    assert "this tenant has 2 sessions here, as many as its quota allows" in str(end.error)
    assert opens(found, 4, "b") == []
    assert found.scheduler.rationing.refused == {"max_sessions": 1}


def test_a_tenant_holds_no_more_slots_than_its_quota_but_one_session_in_any_case() -> None:
    found = bench(only("a", max_share=0.05))
    assert opens(found, 1, "a") == []  # 57 of 1000 slots
    (end,) = opens(found, 2, "a")
    assert "holds 57 KV slots here, and its quota allows 50" in str(end.error)
    assert opens(found, 3, "b") == opens(found, 4, "b") == []


def test_a_text_longer_than_the_quota_is_never_served() -> None:
    found = bench(Quotas(Quota(max_tokens=39)))
    (end,) = opens(found, 1, "a")
    assert isinstance(end.error, UserError)
    assert end.error.code is Code.OUT_OF_RANGE
    assert "max_tokens is 40, and this tenant's texts have 39 at most" in str(end.error)


def test_who_has_had_its_rate_is_told_when_to_come_again() -> None:
    found = bench(only("a", positions_per_second=2.0, burst=4))
    assert opens(found, 1, "a", ask((1, 2, 3, 4))) == []
    assert len(rows(found.begin())[1]) == 4, "the prompt, its tip among it"
    (end,) = opens(found, 2, "a", ask((1, 2)), 0.25)
    assert isinstance(end.error, CapacityError)
    assert end.error.retry_after == 1.25, "for two tokens and the next"
    assert "has had the 2 positions a second of its quota" in str(end.error)
    assert opens(found, 3, "b", None, 0.25) == []


def test_who_begins_too_many_sessions_is_refused_before_anything_is_read() -> None:
    found = bench(only("a", sessions_per_second=2.0, session_burst=3))
    for _ in range(3):
        found.scheduler.charge_stream(0.0, Caller("a"))
    with pytest.raises(CapacityError, match="asked for the 2 sessions a second of its quota") as refused:
        found.scheduler.charge_stream(0.1, Caller("a"))
    assert refused.value.retry_after == pytest.approx(0.4)
    assert found.scheduler.rationing.refused == {"sessions_per_second": 1}
    found.scheduler.charge_stream(0.1, Caller("b"))
    found.scheduler.charge_stream(0.6, Caller("a"))
    with pytest.raises(CapacityError):
        found.scheduler.charge_stream(0.6, Caller("a"))
    found.scheduler.on_quotas(Quotas(), 0.6)
    found.scheduler.charge_stream(0.6, Caller("a"))


def test_a_verifier_that_drains_sends_elsewhere_who_asks_too_often() -> None:
    found = bench(only("a", sessions_per_second=0.01, session_burst=1))
    found.scheduler.charge_stream(0.0, Caller("a"))
    found.scheduler.drain(5.0, 0.0)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="draining; reconnect to another one"):
            found.scheduler.charge_stream(0.0, Caller("a"))
    assert found.scheduler.rationing.refused == {}


# In a step --------------------------------------------------------------------------------------------


def test_whose_rate_is_used_up_waits_and_the_alarm_says_until_when() -> None:
    found = bench(only("a", positions_per_second=10.0, burst=2))
    assert opens(found, 1, "a") == []
    found.step(0.0)
    found.step(0.0)
    assert found.scheduler.next_step(0.0) is None
    assert found.scheduler.next_timer_at == pytest.approx(0.1)
    assert found.scheduler.rationing.num_held == 1
    found.scheduler.on_timer(0.1)
    assert rows(found.begin(0.1)) == {1: [3]}


def test_another_tenant_is_not_held() -> None:
    found = bench(only("a", positions_per_second=1.0))
    assert opens(found, 1, "a") == opens(found, 2, "b") == []
    assert set(rows(found_step(found, 0.0))) == {1, 2}
    assert [set(rows(found_step(found, 0.0))) for _ in range(3)] == [{2}] * 3


def test_drafts_go_first_then_prompts_and_each_keeps_a_position() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=5))
    assert opens(found, 1, "a", ask((1,))) == opens(found, 2, "a", ask(tuple([1] * 20))) == []
    found.propose(1, chain(2, 3, 4, 5, anchor=0))
    plan = rows(found.begin())
    assert {key: len(tokens) for key, tokens in plan.items()} == {1: 1, 2: 4}


def test_sessions_of_one_tenant_take_turns() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=1))
    for key in (1, 2, 3):
        assert opens(found, key, "a") == []
    turns = [next(iter(rows(found_step(found, float(second))))) for second in range(6)]
    assert turns == [1, 2, 3, 1, 2, 3]


def found_step(found: Bench, now: float) -> StepPlan:
    plan = found.begin(now)
    found.end(plan, now)
    return plan


def test_quotas_that_change_hold_from_the_next_step_on() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=1))
    assert opens(found, 1, "a") == []
    found.step(0.0)
    assert found.scheduler.next_step(0.0) is None
    found.scheduler.on_quotas(Quotas(), 0.0)
    assert rows(found.begin(0.0)) == {1: [2]}


def test_a_step_looked_ahead_to_is_charged_and_given_back_if_it_is_not_run() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=2))
    assert opens(found, 1, "a") == []
    scheduler = found.scheduler
    plan = found.begin()
    assert scheduler.look_ahead() is not None
    assert scheduler.rationing.meters.room("a", 0.0) == 0
    found.end(plan)
    assert scheduler.rationing.meters.room("a", 0.0) == 1, "the engine had not begun it"
    found.begin()
    assert scheduler.look_ahead() is None


# Any world --------------------------------------------------------------------------------------------


@dataclass
class Played:
    """A bench in virtual time, with edges that propose right and wrong drafts."""

    seed: int
    rates: dict[str, Quota]
    drafts: bool
    now: float = 0.0
    taken: list[tuple[float, str, int]] = field(default_factory=list)  # when a step was begun, and positions
    finished: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.bench = bench(Quotas(tenants=self.rates), num_slots=4000, prefill_chunk=16, max_rows=24)
        self.tenants = dict[int, str]()

    def begin(self, key: int, tenant: str) -> None:
        prompt = tuple(self.random.randrange(VOCAB) for _ in range(self.random.randrange(1, 30)))
        self.tenants[key] = tenant
        request = ask(prompt, max_tokens=self.random.randrange(1, 12))
        while (refused := opens(self.bench, key, tenant, request, self.now)) != []:
            (end,) = refused
            assert isinstance(end.error, CapacityError)
            assert end.error.retry_after
            self.now += end.error.retry_after
            self.take_effects()

    def play(self) -> None:
        """To the end of all texts. Time passes in steps, and while nobody may have one."""
        scheduler = self.bench.scheduler
        for _ in range(5000):
            if scheduler.idle:
                return
            if self.drafts:
                self.propose()
            plan = scheduler.next_step(self.now)
            if plan is None:
                timer = scheduler.next_timer_at
                assert timer is not None, "somebody waits, and nothing will wake it"
                self.now = max(self.now, timer)
                scheduler.on_timer(self.now)
                continue
            self.run(plan)
        pytest.fail("the texts do not end")

    def run(self, plan: StepPlan) -> None:
        """And those that are looked ahead to, of which the engine begins some."""
        scheduler, next_began = self.bench.scheduler, False
        while True:
            self.note(plan)
            ahead = scheduler.look_ahead() if self.random.random() < 0.7 else None
            self.now += self.random.uniform(0.0, 0.05)
            choices = tuple(count(item) for item in plan.items)
            result = StepResult(choices, tuple(np.zeros(len(each), np.float32) for each in choices))
            going_on = ahead.complete(result) if ahead is not None and self.random.random() < 0.7 else None
            next_began = going_on is not None
            scheduler.on_step_done(result, self.now, self.now, next_began)
            self.take_effects()
            if going_on is None:
                return
            plan = going_on

    def note(self, plan: StepPlan) -> None:
        for item in plan.items:
            self.taken.append((self.now, self.tenants[item.session], len(item.tokens)))

    def propose(self) -> None:
        for key, session in [*self.bench.scheduler.sessions.items()]:
            if self.random.random() < 0.5 and not session.tree.num_speculative:
                tip = session.tree.tip
                left = session.max_length - 1 - tip.position
                first = (tip.token + self.random.choice((1, 1, 2))) % VOCAB
                tokens = [(first + more) % VOCAB for more in range(min(left, self.random.randrange(1, 6)))]
                seen = session.arrivals.lag
                if tokens:
                    self.bench.propose(key, chain(*tokens, anchor=tip.position, seen=seen), self.now)
        self.take_effects()

    def take_effects(self) -> None:
        for effect in self.bench.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Finish):
                self.finished.add(effect.session)
            assert not (isinstance(effect, End) and effect.error), effect


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rate=st.floats(5.0, 400.0),
    burst=st.integers(1, 40),
    tenants=st.lists(st.sampled_from("aabc"), min_size=1, max_size=6),
    drafts=st.booleans(),
)
def test_in_any_world_a_tenant_has_its_rate_and_its_burst_at_most_and_its_texts_end(
    seed: int, rate: float, burst: int, tenants: list[str], drafts: bool
) -> None:
    quotas = {"a": Quota(positions_per_second=rate, burst=burst), "b": Quota(positions_per_second=4 * rate)}
    world = Played(seed, quotas, drafts)
    for key, tenant in enumerate(tenants, start=1):
        world.begin(key, tenant)
    world.play()
    assert world.finished == set(range(1, len(tenants) + 1))
    for tenant, quota in quotas.items():
        positions = quota.positions
        assert positions is not None
        had = [(at, number) for at, whose, number in world.taken if whose == tenant]
        for first, last in combinations_with_replacement(range(len(had)), 2):
            stretch = had[last][0] - had[first][0]
            most = positions.per_second * stretch + positions.burst
            assert sum(number for _, number in had[first : last + 1]) <= most + 1e-6
