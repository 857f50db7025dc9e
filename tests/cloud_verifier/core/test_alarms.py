"""Laws of the alarms: each rings once, at its last time, the earliest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.alarms import Alarms


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
