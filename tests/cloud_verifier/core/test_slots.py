"""Laws of slots: each is free or taken once, promises are kept, and a view never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.slots import SlotList, SlotPool
from common.errors import LocalError


def test_slots_are_handed_out_lowest_first_and_the_last_freed_before_others() -> None:
    pool = SlotPool(6)
    first = pool.take(3)
    assert first == [0, 1, 2]
    pool.give_back(first[1:2])
    assert pool.take(2) == [1, 3]
    assert pool.num_free == 2


@given(st.integers(0, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30))
def test_a_slot_is_free_or_taken_once(size: int, moves: list[tuple[bool, int]]) -> None:
    pool, taken = SlotPool(size), list[int]()
    for take, number in moves:
        if take and number <= pool.num_free:
            taken += pool.take(number)
        elif not take:
            pool.give_back(taken[:number])
            taken = taken[number:]
        assert len(set(taken)) == len(taken) == size - pool.num_free
        assert all(0 <= slot < size for slot in taken)


def test_taking_more_than_there_is_is_our_own_fault() -> None:
    pool = SlotPool(2)
    with pytest.raises(LocalError, match="3 slots asked for and 2 free"):
        pool.take(3)
    assert pool.num_free == 2


@given(st.integers(0, 8), st.lists(st.lists(st.integers(0, 99), max_size=40), max_size=8))
def test_growing_leaves_earlier_views_as_they_were(capacity: int, parts: list[list[int]]) -> None:
    slots, views, expected = SlotList(capacity), [], list[int]()
    for part in parts:
        slots.extend(np.array(part, np.int32))
        expected += part
        views.append((slots.view, list(expected)))
    assert len(slots) == len(expected)
    for view, content in views:
        assert view.tolist() == content
        assert view.dtype == np.int32


def test_a_view_cannot_be_written() -> None:
    slots = SlotList(4)
    slots.extend(np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="read-only"):
        slots.view[0] = 9
