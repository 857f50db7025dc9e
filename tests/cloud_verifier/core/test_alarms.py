"""Laws of the alarms: each rings once, at its last time, the earliest first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.alarms import SLACK, Alarms


def test_alarms_ring_in_order_and_once() -> None:
    alarms = Alarms()
    alarms.set(1, 5.0)
    alarms.set(2, 3.0)
    alarms.set(3, 9.0)
    assert alarms.next_at == 3.0
    assert alarms.due(5.0) == [2, 1]
    assert alarms.due(5.0) == []
    assert alarms.next_at == 9.0


@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 20))), max_size=30))
def test_the_last_setting_of_a_key_is_the_one_that_counts(changes: list[tuple[int, int | None]]) -> None:
    alarms, expected = Alarms(), dict[int, int]()
    for key, at in changes:
        alarms.set(key, at)
        expected.pop(key, None)
        if at is not None:
            expected[key] = at
    assert alarms.next_at == min(expected.values(), default=None)
    assert alarms.due(20.0) == sorted(expected, key=lambda key: (expected[key], key))


def test_alarms_that_are_set_and_forgotten_take_no_memory() -> None:
    """As of streams that come and go while one stays, each with a deadline far away."""
    alarms = Alarms()
    alarms.set(0, 1.0)
    for key in range(1, 10_000):
        alarms.set(key, 1e9 + key)
        alarms.set(key, None)
    assert len(alarms) <= 2 + SLACK
    assert (alarms.next_at, alarms.due(2.0), alarms.next_at) == (1.0, [0], None)


@pytest.mark.parametrize("seed", range(20))
def test_throwing_out_forgotten_alarms_forgets_no_other(seed: int) -> None:
    alarms, last, draw = Alarms(), dict[int, int](), random.Random(seed)
    for _ in range(300):
        key, at = draw.randrange(5), draw.randrange(20)
        alarms.set(key, at)
        last[key] = at
        assert len(alarms) <= 2 * 5 + SLACK
    assert alarms.due(20.0) == sorted(last, key=lambda key: (last[key], key))
