"""Tiles hold every row once and in order, and a row alone sees what it saw in its item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from cloud_verifier.engine.packing import PackedStep

pytestmark = pytest.mark.torch

TRASH = 777


def random_step(seed: int) -> PackedStep:
    """A step of up to five sessions with trees, some of them empty."""
    from cloud_verifier.core.target import StepPlan
    from cloud_verifier.engine.packing import StepLimits, pack
    from tests.cloud_verifier.engine.tiny import Session, Slots

    random = np.random.default_rng(seed)
    slots = Slots(512)
    items = []
    for key in range(int(random.integers(1, 6))):
        session = Session(key, slots, held=slots.take(int(random.integers(0, 9))))
        count = int(random.integers(0, 12))
        parents = [int(random.integers(-1, row)) if row else -1 for row in range(count)]
        outputs = np.flatnonzero(random.integers(2, size=count)).tolist()
        items.append(session.item(random.integers(90, size=count).tolist(), parents, outputs))
    return pack(StepPlan(tuple(items)), StepLimits(97, 128, 512))


def seen(step: PackedStep) -> list[list[int]]:
    """The slots that each packed row sees, by position."""
    from cloud_verifier.engine.packing import path_rows

    return [
        [*item.prefix_slots.tolist(), *item.slots[path_rows(item.parents, row)].tolist()]
        for item in step.items
        for row in range(len(item.tokens))
    ]


@given(st.integers(0, 2**32 - 1))
def test_a_row_alone_sees_what_it_saw(seed: int) -> None:
    from cloud_verifier.engine.exact_tiles import rows_alone

    step = random_step(seed)
    alone = rows_alone(step)
    assert seen(alone) == seen(step)
    assert [len(item.tokens) for item in alone.items] == [1] * step.num_rows
    assert rows_alone(alone) is alone
    for name in ("tokens", "positions", "slots", "outputs"):
        assert getattr(alone, name).tolist() == getattr(step, name).tolist()
    assert [len(item.prefix_slots) for item in alone.items] == step.positions.tolist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_tiles_hold_every_row_once_and_parents_come_first(seed: int, num_rows: int) -> None:
    from cloud_verifier.engine.exact_tiles import rows_alone, tiles

    step = random_step(seed)
    found = list(tiles(rows_alone(step), num_rows, TRASH))
    assert len(found) == -(-step.num_rows // num_rows)
    inputs = (
        np.concatenate([tile.inputs[:, : tile.step.num_rows] for tile in found], axis=1) if found else None
    )
    if inputs is not None:
        assert inputs.tolist() == [step.tokens.tolist(), step.positions.tolist(), step.slots.tolist()]
    outputs = [at * num_rows + row for at, tile in enumerate(found) for row in tile.outputs.tolist()]
    assert outputs == step.outputs.tolist()
    for tile in found:
        assert tile.inputs.shape == (3, num_rows)
        assert set(tile.inputs[2, tile.step.num_rows :].tolist()) <= {TRASH}
        assert tile.step.slots.tolist() == [int(item.slots[0]) for item in tile.step.items]


def test_what_a_row_sees_was_computed_in_its_tile_or_before() -> None:
    from cloud_verifier.engine.exact_tiles import rows_alone, tiles

    for seed in range(50):
        step = random_step(seed)
        computed = {slot for item in step.items for slot in item.prefix_slots.tolist()}
        for tile in tiles(rows_alone(step), 4, TRASH):
            computed |= set(tile.step.slots.tolist())
            for item in tile.step.items:
                assert set(item.prefix_slots.tolist()) <= computed
