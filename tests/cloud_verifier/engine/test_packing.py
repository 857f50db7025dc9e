"""A plan is laid end to end, and one that breaks a rule is named before it reaches the model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import IntArray, StepPlan
from cloud_verifier.core.kv_memory import SlotList
from cloud_verifier.engine.attention.ancestor_mask import ancestor_mask
from cloud_verifier.engine.packing import PrefixMarks, StepLimits, item_of, pack, path_rows
from common.errors import LocalError
from tests import wording

LIMITS = StepLimits(vocab_size=50, max_positions=20, num_slots=40)


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int32)


TREE = item_of([-1, 0, 0, 2], ints(9, 3, 4, 1), [30, 31], tokens=[5, 6, 7, 8], outputs=[0, 3], session=1)
CHAIN = item_of([-1, 0], ints(20, 21), tokens=[1, 2], outputs=[1], session=2)


def test_items_lie_end_to_end_with_packed_parents_and_outputs() -> None:
    step = pack(StepPlan((CHAIN, TREE)), LIMITS)
    assert step.starts == (0, 2, 6)
    assert step.tokens.tolist() == [1, 2, 5, 6, 7, 8]
    assert step.positions.tolist() == [0, 1, 2, 3, 3, 4]
    assert step.parents.tolist() == [-1, 0, -1, 2, 2, 4]
    assert step.outputs.tolist() == [1, 2, 5]


def test_an_empty_plan_packs_to_nothing() -> None:
    step = pack(StepPlan(()), LIMITS)
    assert (step.num_rows, step.tokens.tolist(), step.outputs.tolist()) == (0, [], [])


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": ints(5, 6, 7)},
        {"outputs": ints(0, 4)},
        {"outputs": ints(-1)},
        {"outputs": ints(2, 1)},
        {"parents": ints(-1, 0, 2, 2)},
        {"parents": ints(-1, 0, 0, -2)},
        {"positions": ints(2, 3, 4, 5)},
        {"positions": ints(0, 1, 1, 2)},
        {"prefix_slots": ints(*range(10, 28)), "positions": ints(18, 19, 19, 20)},
        {"tokens": ints(5, 6, 7, 50)},
        {"tokens": ints(5, 6, -7, 8)},
        {"slots": ints(9, 3, 4, 40)},
        {"slots": ints(9, 3, 4, -1)},
        {"slots": ints(9, 3, 4, 3)},
        {"slots": ints(9, 3, 4, 31)},
        {"slots": ints(9, 3, 4, 20)},  # the other session's
    ],
)
def test_a_broken_rule_is_named(change: dict[str, Any]) -> None:
    with wording.raises(LocalError):
        pack(StepPlan((CHAIN, replace(TREE, **change))), LIMITS)


def test_a_row_may_not_overwrite_another_sessions_prefix() -> None:
    with wording.raises(LocalError):
        pack(StepPlan((replace(CHAIN, slots=ints(20, 30)), TREE)), LIMITS)


def test_a_prefix_that_grew_in_place_is_checked_as_one_seen_for_the_first_time() -> None:
    """With what a step before has marked, a plan is refused and taken as without it."""
    lease, marks = SlotList(16), PrefixMarks(LIMITS.num_slots)
    lease.extend([5, 6])

    def take(slots: IntArray) -> None:
        item = replace(item_of([-1], slots, lease.view, tokens=[1], outputs=[0]), session=3)
        pack(StepPlan((replace(item, prefix_slots=lease.view),)), LIMITS, marks)

    take(ints(7))
    lease.extend([7])
    for slot in (5, 7):  # shown before, and new
        with wording.raises(LocalError):
            take(ints(slot))
    take(ints(8))
    lease.extend([40])
    with wording.raises(LocalError):
        take(ints(9))


def test_slots_of_sessions_that_are_gone_can_be_written() -> None:
    marks, other = PrefixMarks(LIMITS.num_slots), item_of([-1], ints(10), [11, 12], tokens=[1], session=2)
    pack(StepPlan((TREE, other)), LIMITS, marks)
    pack(StepPlan((replace(TREE, slots=ints(11, 12, 4, 5)),)), LIMITS, marks)
    with wording.raises(LocalError):  # it has not forgotten those that are there
        pack(StepPlan((replace(TREE, slots=ints(11, 12, 4, 31)),)), LIMITS, marks)


@given(st.data())
def test_a_row_sees_exactly_its_path(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    parents = ints(*(data.draw(st.integers(-1, row - 1)) for row in range(count)))
    mask = ancestor_mask(parents)
    assert path_rows(TREE.parents, 3) == [0, 2, 3]
    for row in range(count):
        assert np.flatnonzero(mask[row]).tolist() == path_rows(parents, row)
