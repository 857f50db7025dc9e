"""The bits of lone attention do not change with the company."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.deterministic.exact_engine import (
    SHORTEST,
    _keys,
    activate_row_by_row,
    padded_length,
    share_runs,
)
from cloud_verifier.engine.deterministic.tiles import rows_alone
from cloud_verifier.engine.packing import PackedStep, pack, path_rows
from tests.cloud_verifier.engine.attention_rig import LIMITS, NUM_SLOTS
from tests.cloud_verifier.engine.tiny import Session, Slots

pytestmark = pytest.mark.torch


@given(st.integers(1, 2**20))
def test_padding_is_a_quarter_at_most_and_lengths_are_few(num_keys: int) -> None:
    length = padded_length(num_keys)
    assert num_keys <= length
    assert length == SHORTEST or length < 1.25 * num_keys
    assert padded_length(length) == length
    assert length % 8 == 0


def test_rows_of_one_path_share_what_is_gathered() -> None:
    """A chunk needs one run of keys, a tree one for each leaf; a window cut off has its own beginning."""
    slots = Slots(NUM_SLOTS)
    session, other = Session(1, slots, held=slots.take(3)), Session(2, slots)
    chunk, tree = other.chunk([0] * 5), session.item([0] * 6, [-1, 0, 0, 1, 2, 1], ())
    step = rows_alone(pack(StepPlan((chunk, tree)), LIMITS))
    for window, expected in (
        (None, [4] * 5 + [10, 10, 9, 8, 9, 10]),
        (4, [3, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10]),
    ):
        keys = [_keys(item, window) for item in step.items]
        assert share_runs(keys, step.positions.tolist()) == expected


# An activation's bits depend on its row alone, and not on where the row stands.


@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize(("num_rows", "width"), [(16, 97), (24, 897)])
def test_an_activation_has_the_same_bits_in_every_row(name: str, num_rows: int, width: int) -> None:
    activation = ACT2FN[name]
    torch.manual_seed(0)
    row = torch.randn(width)
    plain = activation(row)
    assert activate_row_by_row(activation) == 1
    result = activation(row.expand(1, num_rows, width).contiguous())
    assert result.shape == (1, num_rows, width)
    assert bool((result == plain).all())


# Tiles hold every row once and in order, and a row alone sees what it saw in its item.


def seen(step: PackedStep) -> list[list[int]]:
    """The slots that each packed row sees, by position."""
    return [
        [*item.prefix_slots.tolist(), *item.slots[path_rows(item.parents, row)].tolist()]
        for item in step.items
        for row in range(len(item.tokens))
    ]
