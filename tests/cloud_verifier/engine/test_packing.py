"""A plan is laid end to end, and one that breaks a rule is named before it reaches the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from cloud_verifier.engine.packing import StepLimits, ancestor_mask, pack, path_rows
from common.errors import LocalError
from common.sampling import SamplingParams

LIMITS = StepLimits(vocab_size=50, max_positions=20, num_slots=40)


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int32)


TREE = StepItem(
    session=1,
    prefix_slots=ints(30, 31),
    tokens=ints(5, 6, 7, 8),
    positions=ints(2, 3, 3, 4),
    parents=ints(-1, 0, 0, 2),
    slots=ints(9, 3, 4, 1),
    outputs=ints(0, 3),
    sampling=SamplingParams(),
)
CHAIN = replace(
    TREE,
    session=2,
    prefix_slots=ints(),
    tokens=ints(1, 2),
    positions=ints(0, 1),
    parents=ints(-1, 0),
    slots=ints(20, 21),
    outputs=ints(1),
)


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
    ("change", "reason"),
    [
        ({"tokens": ints(5, 6, 7)}, "the four must be equal"),
        ({"outputs": ints(0, 4)}, "rows of it"),
        ({"outputs": ints(-1)}, "rows of it"),
        ({"outputs": ints(2, 1)}, "increasing"),
        ({"parents": ints(-1, 0, 2, 2)}, "row before it"),
        ({"parents": ints(-1, 0, 0, -2)}, "row before it"),
        ({"positions": ints(2, 3, 4, 5)}, "one after its parent's"),
        ({"positions": ints(0, 1, 1, 2)}, "one after its parent's"),
        ({"prefix_slots": ints(*range(10, 28)), "positions": ints(18, 19, 19, 20)}, "last position, 19"),
        ({"tokens": ints(5, 6, 7, 50)}, "vocabulary of 50"),
        ({"tokens": ints(5, 6, -7, 8)}, "vocabulary of 50"),
        ({"slots": ints(9, 3, 4, 40)}, "store of 40"),
        ({"slots": ints(9, 3, 4, -1)}, "store of 40"),
        ({"slots": ints(9, 3, 4, 3)}, "two rows"),
        ({"slots": ints(9, 3, 4, 31)}, "prefix of this step"),
        ({"slots": ints(9, 3, 4, 20)}, "two rows"),  # the other session's
    ],
)
def test_a_broken_rule_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        pack(StepPlan((CHAIN, replace(TREE, **change))), LIMITS)


def test_a_row_may_not_overwrite_another_sessions_prefix() -> None:
    with pytest.raises(LocalError, match="prefix of this step"):
        pack(StepPlan((replace(CHAIN, slots=ints(20, 30)), TREE)), LIMITS)


@given(st.data())
def test_a_row_sees_exactly_its_path(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    parents = ints(*(data.draw(st.integers(-1, row - 1)) for row in range(count)))
    mask = ancestor_mask(parents)
    for row in range(count):
        assert np.flatnonzero(mask[row]).tolist() == path_rows(parents, row)


def test_a_path_runs_from_the_prefix_to_the_row() -> None:
    assert path_rows(TREE.parents, 3) == [0, 2, 3]
