"""Laws of quotas: no tenant has more than its rate and its burst, and nobody else notices."""

import math
import random
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.core.admission import Caller, RetryTimes
from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.quotas import MAX_BUCKETS, MOST_AHEAD, Meters, Quota, Quotas, Rate
from common.errors import CapacityError, ForerunError, UnavailableError, UserError
from common.messages import Finish
from tests import wording
from tests.cloud_verifier.core.bench import VOCAB, Bench, ask, chain, ends, result_of, rows


def meters(rate: float, burst: int | None = None) -> Meters:
    return of(Quota(positions_per_second=rate, burst=burst))


def of(default: Quota, **tenants: Quota) -> Meters:
    quotas = Quotas(default, tenants)
    return Meters(lambda tenant: quotas.of(tenant).positions)


def test_a_bucket_begins_full_and_fills_at_its_rate() -> None:
    found = meters(10.0, 5)
    assert found.room("a", 0.0) == 5
    found.take({"a": 5})
    assert [found.room("a", now) for now in (0.0, 0.09, 0.1, 0.25, 9.0)] == [0, 0, 1, 2, 5]
    assert found.room("b", 9.0) == 5, "another tenant's is its own"


def test_a_wait_is_until_so_many_are_there() -> None:
    found = meters(4.0, 8)
    found.take({"a": found.room("a", 0.0) or 0})
    assert found.wait("a", 2, 0.0) == 0.5
    assert found.wait("a", 100, 0.0) == 2.0, "more than the burst there never are"
    assert found.wait("a", 2, 1.0) == 0.0


def test_changed_quotas_take_nothing_back_and_give_nothing() -> None:
    found = meters(10.0, 100)
    assert found.room("a", 0.0) == 100
    found.take({"a": 95})
    found.change(lambda tenant: Rate(1.0, 50), 2.0)
    assert found.room("a", 2.0) == 25, "2 s at the old rate"
    assert found.room("a", 4.0) == 27
    found.change(lambda tenant: Rate(1.0, 5), 4.0)
    assert found.room("a", 4.0) == 5
    found.change(lambda tenant: None, 4.0)
    assert found.room("a", 4.0) is None


def test_tenants_without_end_take_no_memory_without_end() -> None:
    found = meters(1.0)
    for number in range(3 * MAX_BUCKETS):
        found.room(f"tenant {number}", 0.0)
    found.take({f"tenant {3 * MAX_BUCKETS - 1}": 1})
    assert len(found._buckets) <= 2 * MAX_BUCKETS
    for number in range(MAX_BUCKETS):
        found.room(f"other {number}", 0.0)
    assert found.room(f"tenant {3 * MAX_BUCKETS - 1}", 0.0) == 0, "one that is not full is never forgotten"


def test_who_finds_it_empty_is_told_a_turn_of_its_own() -> None:
    found = meters(2.0, 1)
    assert found.room("a", 0.0) == 1
    found.take({"a": 1})
    assert [found.turn("a", 0.0) for _ in range(3)] == [0.5, 1.0, 1.5]
    assert found.turn("a", 0.25) == pytest.approx(1.75), "behind those"
    assert found.turn("a", 9.0) == 0.0, "there is one"
    assert found.turn("b", 0.0) == 0.0
    for _ in range(1000):
        assert found.turn("a", 9.0) <= MOST_AHEAD
    assert of(Quota()).turn("a", 0.0) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_sessions": 0},
        {"positions_per_second": math.nan},
        {"positions_per_second": math.inf},
        {"max_share": 1.5},
        {"burst": 5},
        {"session_burst": 5},
        {"sessions_per_second": 0.0},
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with wording.raises(UserError):
        Quota(**wrong)  # type: ignore[arg-type]  # fields vary by case


@pytest.mark.parametrize("interval", [0.001, 0.05, 2.0, 100.0])
def test_callers_that_find_no_room_together_do_not_come_back_together(interval: float) -> None:
    turns = RetryTimes()
    told = [turns.next(5.0, interval) for _ in range(100)]
    assert len(set(told)) == 100
    assert 0.0 < min(told) <= max(told) <= 60.0
    assert turns.next(500.0, interval) == pytest.approx(min(max(interval, 0.05), 30.0)), "the queue has gone"


# In the scheduler --------------------------------------------------------------------------------------


def bench(quotas: Quotas, **limits: float) -> Bench:
    found = Bench(**limits)  # type: ignore[arg-type]  # fields vary by case
    found.scheduler.on_quotas(quotas, 0.0)
    return found


def only(tenant: str, **quota: float) -> Quotas:
    return Quotas(tenants={tenant: Quota(**quota)})  # type: ignore[arg-type]  # fields vary by case


# At the door ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "quota", "error"),
    [
        ("max_sessions", {"max_sessions": 1}, CapacityError),
        ("max_share", {"max_share": 0.05}, CapacityError),  # one session in any case: 57 of 1000 slots
        ("max_tokens", {"max_tokens": 40}, UserError),
    ],
)
def test_a_tenant_has_no_more_than_its_quota(
    limit: str, quota: dict[str, float], error: type[ForerunError]
) -> None:
    found = bench(only("a", **quota))
    assert ends(found.open(1, tenant="a")) == []
    (end,) = ends(found.open(2, ask(max_tokens=41), tenant="a"))
    assert type(end.error) is error
    wording.keep(str(end.error))
    assert ends(found.open(3, tenant="b")) == ends(found.open(4, tenant="b")) == []
    assert found.scheduler.tenants.refused == {limit: 1}


def test_who_has_had_its_rate_is_told_when_to_come_again() -> None:
    found = bench(only("a", positions_per_second=2.0, burst=4))
    assert ends(found.open(1, ask((1, 2, 3, 4)), tenant="a")) == []
    assert len(rows(found.begin())[1]) == 4, "the prompt, its tip among it"
    (end,) = ends(found.open(2, ask((1, 2)), 0.25, "a"))
    assert isinstance(end.error, CapacityError)
    assert end.error.retry_after == 1.25, "for two tokens and the next"
    wording.keep(str(end.error))
    assert ends(found.open(3, None, 0.25, "b")) == []


def test_who_begins_too_many_sessions_is_refused_before_anything_is_read() -> None:
    found = bench(only("a", sessions_per_second=2.0, session_burst=3))
    for _ in range(3):
        found.scheduler.charge_stream(0.0, Caller("a"))
    with wording.raises(CapacityError) as refused:
        found.scheduler.charge_stream(0.1, Caller("a"))
    assert refused.value.retry_after == pytest.approx(0.4)
    assert found.scheduler.tenants.refused == {"sessions_per_second": 1}
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
        with wording.raises(UnavailableError):
            found.scheduler.charge_stream(0.0, Caller("a"))
    assert found.scheduler.tenants.refused == {}


# In a step --------------------------------------------------------------------------------------------


def test_another_tenant_is_not_held() -> None:
    found = bench(only("a", positions_per_second=1.0))
    assert ends(found.open(1, tenant="a")) == ends(found.open(2, tenant="b")) == []
    assert set(rows(found_step(found, 0.0))) == {1, 2}
    assert [set(rows(found_step(found, 0.0))) for _ in range(3)] == [{2}] * 3


def test_drafts_go_first_then_prompts_and_each_keeps_a_position() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=5))
    assert ends(found.open(1, ask((1,)), tenant="a")) == ends(found.open(2, ask((1,) * 20), tenant="a")) == []
    found.propose(1, chain(2, 3, 4, 5, anchor=0))
    plan = rows(found.begin())
    assert {key: len(tokens) for key, tokens in plan.items()} == {1: 1, 2: 4}


def test_sessions_of_one_tenant_take_turns() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=1))
    for key in (1, 2, 3):
        assert ends(found.open(key, tenant="a")) == []
    turns = [next(iter(rows(found_step(found, float(second))))) for second in range(6)]
    assert turns == [1, 2, 3, 1, 2, 3]


def found_step(found: Bench, now: float) -> StepPlan:
    plan = found.begin(now)
    found.end(plan, now)
    return plan


def test_a_step_looked_ahead_to_is_charged_and_given_back_if_it_is_not_run() -> None:
    found = bench(only("a", positions_per_second=1.0, burst=2))
    assert ends(found.open(1, tenant="a")) == []
    scheduler = found.scheduler
    plan = found.begin()
    assert scheduler.look_ahead() is not None
    assert scheduler.tenants.positions.room("a", 0.0) == 0
    found.end(plan)
    assert scheduler.tenants.positions.room("a", 0.0) == 1, "the engine had not begun it"
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
        while (refused := ends(self.bench.open(key, request, self.now, tenant))) != []:
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
            result = result_of(plan)
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


@pytest.mark.slow
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
