"""Slots come at fixed times, and none is made up for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.cadence import Cadence
from common.errors import LocalError


def test_slots_are_multiples_of_the_interval_from_the_beginning() -> None:
    cadence = Cadence(0.25, 10.0)
    assert cadence.next_at == 10.25
    assert not cadence.due(10.2)
    assert cadence.due(10.25)
    assert not cadence.due(10.26)
    assert cadence.next_at == 10.5
    assert cadence.due(10.6), "late, and not later for that"
    assert cadence.next_at == 10.75
    assert cadence.num_slots == 2


def test_slots_that_were_slept_through_are_lost() -> None:
    cadence = Cadence(0.25, 0.0)
    assert cadence.due(1.1)
    assert cadence.next_at == 1.25
    assert cadence.num_slots == 1


@given(st.floats(1e-3, 10.0), st.floats(0.0, 1e6), st.lists(st.floats(0.0, 100.0), max_size=20))
def test_never_two_in_one_interval_whenever_it_is_asked(
    interval: float, began_at: float, pauses: list[float]
) -> None:
    cadence, now = Cadence(interval, began_at), began_at
    for pause in pauses:
        now += pause
        if cadence.due(now):
            assert cadence.next_at > now
            assert not cadence.due(now)


@pytest.mark.parametrize("interval", [0.0, -1.0, float("inf"), float("nan")])
def test_an_interval_that_is_none_is_a_defect(interval: float) -> None:
    with pytest.raises(LocalError, match="is none"):
        Cadence(interval, 0.0)
