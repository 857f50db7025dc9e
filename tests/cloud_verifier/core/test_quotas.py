"""Laws of quotas: no tenant has more than its rate over any stretch of time and its burst."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.quotas import MAX_BUCKETS, MOST_AHEAD, Meters, Quota, Quotas, Rate, Turns
from common.errors import UserError


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


def test_without_a_rate_there_is_no_bound() -> None:
    found = of(Quota(max_sessions=1), a=Quota(positions_per_second=1.0))
    assert (found.room("b", 0.0), found.wait("b", 10**9, 0.0)) == (None, 0.0)
    assert found.room("a", 0.0) == 1


def test_a_wait_is_until_so_many_are_there() -> None:
    found = meters(4.0, 8)
    found.take({"a": found.room("a", 0.0) or 0})
    assert found.wait("a", 2, 0.0) == 0.5
    assert found.wait("a", 100, 0.0) == 2.0, "more than the burst there never are"
    assert found.wait("a", 2, 1.0) == 0.0


def test_a_step_looked_ahead_to_takes_what_was_known_and_may_give_it_back() -> None:
    found = meters(1.0, 3)
    assert found.room("a", 0.0) == 3
    assert found.take_ahead({"a": 2, "free": 9})
    assert not found.take_ahead({"a": 2})
    found.give_back({"a": 2})
    assert found.take_ahead({"a": 3})
    found.give_back({"a": 99})
    assert found.room("a", 0.0) == 3, "never above the burst"


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


@given(rate=st.floats(0.5, 100.0), burst=st.integers(1, 50), num_callers=st.integers(1, 60))
def test_who_comes_again_in_turn_is_let_in(rate: float, burst: int, num_callers: int) -> None:
    """As far as turns are told, at the second time."""
    found = meters(rate, burst)
    turns = list[float]()
    for _ in range(num_callers):
        if found.room("a", 0.0):
            found.take({"a": 1})
        else:
            turns.append(found.turn("a", 0.0))
    for turn in (each for each in turns if each < MOST_AHEAD):
        assert found.room("a", turn * (1 + 1e-9))
        found.take({"a": 1})


Moves = list[tuple[float, float, bool]]


@given(
    rate=st.floats(0.01, 1000.0),
    burst=st.integers(1, 500),
    moves=st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.booleans()), max_size=25),
)
def test_over_any_stretch_of_time_a_tenant_has_its_rate_and_its_burst_at_most(
    rate: float, burst: int, moves: Moves
) -> None:
    """However it asks: `moves` are pauses, the part of the room that is taken, and whether it is given
    back."""
    found, now, taken = meters(rate, burst), 0.0, list[tuple[float, int]]()
    for pause, part, returned in moves:
        now += pause
        room = found.room("a", now)
        assert room is not None
        count = math.ceil(part * room)
        found.take({"a": count})
        if returned:
            found.give_back({"a": count})
        else:
            taken.append((now, count))
    for first, last in combinations_with_replacement(range(len(taken)), 2):
        stretch = taken[last][0] - taken[first][0]
        assert sum(count for _, count in taken[first : last + 1]) <= rate * stretch + burst + 1e-6


@given(rate=st.floats(0.01, 1000.0), burst=st.integers(1, 500), count=st.integers(1, 1000))
def test_after_the_wait_the_room_is_there(rate: float, burst: int, count: int) -> None:
    found = meters(rate, burst)
    found.take({"a": found.room("a", 0.0) or 0})
    wait = found.wait("a", count, 0.0)
    assert (found.room("a", wait * (1 + 1e-9) + 1e-9) or 0) >= min(count, burst)


def test_a_burst_is_a_second_of_its_rate_and_one_at_least() -> None:
    quota = Quota(positions_per_second=0.5, sessions_per_second=4.0)
    assert (quota.positions, quota.sessions) == (Rate(0.5, 1.0), Rate(4.0, 4.0))
    quota = Quota(positions_per_second=0.5, burst=7, sessions_per_second=4.0, session_burst=1)
    assert (quota.positions, quota.sessions) == (Rate(0.5, 7.0), Rate(4.0, 1.0))
    assert (Quota().positions, Quota().sessions) == (None, None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_sessions": 0}, "max_sessions is 0; it must be above 0"),
        ({"positions_per_second": math.nan}, "must be above 0"),
        ({"positions_per_second": math.inf}, "must be above 0"),
        ({"max_share": 1.5}, "at most 1"),
        ({"burst": 5}, "needs positions_per_second"),
        ({"session_burst": 5}, "needs sessions_per_second"),
        ({"sessions_per_second": 0.0}, "must be above 0"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Quota(**wrong)  # type: ignore[arg-type]  # fields vary by case


@pytest.mark.parametrize("interval", [0.001, 0.05, 2.0, 100.0])
def test_callers_that_find_no_room_together_do_not_come_back_together(interval: float) -> None:
    turns = Turns()
    told = [turns.next(5.0, interval) for _ in range(100)]
    assert len(set(told)) == 100
    assert 0.0 < min(told) <= max(told) <= 60.0
    assert turns.next(500.0, interval) == pytest.approx(min(max(interval, 0.05), 30.0)), "the queue has gone"
