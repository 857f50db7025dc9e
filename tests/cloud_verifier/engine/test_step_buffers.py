"""A step in its bucket's places is the step, and what pads it does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cloud_verifier.core.target import StepPlan

if TYPE_CHECKING:
    from cloud_verifier.engine.attention_plan import AttentionPlan
    from cloud_verifier.engine.device_choice import ChoiceTable
    from cloud_verifier.engine.packing import PackedStep
    from cloud_verifier.engine.step_buffers import StepBuffers
    from tests.cloud_verifier.engine.triton_rig import Shape

pytestmark = pytest.mark.triton

SPARE = 1023


def buffers(max_units: int = 64, max_keys: int = 500) -> StepBuffers:
    from cloud_verifier.engine.step_buffers import StepBuffers
    from tests.cloud_verifier.engine.triton_rig import device_for_kernels

    return StepBuffers(device_for_kernels(), max_units, max_keys, rows_per_unit=8, spare_slot=SPARE)


def step_of(shapes: list[Shape]) -> tuple[PackedStep, AttentionPlan, ChoiceTable]:
    """Every row is an output, sampled at 0.5."""
    from dataclasses import replace

    from cloud_verifier.engine.attention_plan import plan_attention
    from cloud_verifier.engine.device_choice import choice_table
    from cloud_verifier.engine.engine import choice_rows
    from cloud_verifier.engine.packing import StepLimits, pack
    from common.sampling import SamplingParams
    from tests.cloud_verifier.engine.triton_rig import NUM_SLOTS, random_plan

    sampling = SamplingParams(temperature=0.5, seed=9)
    items = [
        replace(
            item,
            outputs=np.arange(len(item.tokens), dtype=np.int32),
            sampling=sampling,
            tokens=item.slots % 10,
        )
        for item in random_plan(shapes).items
    ]
    step = pack(StepPlan(tuple(items)), StepLimits(10, 1000, NUM_SLOTS))
    return step, plan_attention(step), choice_table(step, choice_rows)


@pytest.mark.parametrize(
    ("num_rows", "num_units", "expected"),
    [(1, 1, (8, 16)), (8, 16, (8, 16)), (9, 17, (16, 32)), (200, 100, (256, 128)), (512, 1, (512, 16))],
)
def test_a_bucket_is_the_smallest_that_fits(num_rows: int, num_units: int, expected: tuple[int, int]) -> None:
    from cloud_verifier.engine.step_buffers import Bucket

    assert Bucket.of(num_rows, num_units) == Bucket(*expected)


def test_what_fits_nowhere_has_no_bucket() -> None:
    from cloud_verifier.engine.step_buffers import Bucket

    assert Bucket.of(513, 1) is None
    small = buffers(max_units=2, max_keys=40)
    for shapes in ([(3, 4, "tree")] * 3, [(39, 2, "chain")], [(0, 65, "chain")]):
        assert small.bucket(step_of(shapes)[1]) is None
    assert small.bucket(step_of([(3, 4, "tree")])[1]) == Bucket(8, 16)


def test_the_device_reads_what_the_step_says() -> None:
    held = buffers()
    held.send(*prepared(held, [(9, 8, "tree"), (70, 3, "tree")]))  # what a larger step leaves behind
    bucket, step, plan, table = prepared(held, [(5, 3, "tree"), (20, 1, "chain")])
    held.send(bucket, step, plan, table)
    found = held.device_step(bucket)
    rows, units = step.num_rows, len(plan.units)
    for name in ("tokens", "positions", "slots"):
        assert getattr(found, name)[:rows].tolist() == getattr(step, name).tolist()
    assert found.outputs[:rows].tolist() == step.outputs.tolist()
    assert found.keys[:rows].tolist() == table.keys.tolist()
    assert found.temperatures[:rows].tolist() == [0.5] * rows
    assert found.tables.units[:units].tolist() == plan.units.tolist()
    assert found.tables.rows[:rows].tolist() == plan.rows.tolist()
    assert found.tables.positions[:rows].tolist() == plan.positions.tolist()
    assert found.tables.keys[: len(plan.keys)].tolist() == plan.keys.tolist()
    assert found.tables.bits[: len(plan.bits)].tolist() == plan.bits.tolist()


def test_padding_writes_to_the_spare_slot_and_belongs_to_no_unit() -> None:
    held = buffers()
    held.send(*prepared(held, [(9, 8, "tree"), (70, 8, "tree")]))
    bucket, step, plan, table = prepared(held, [(5, 3, "tree"), (20, 8, "chain")])
    held.send(bucket, step, plan, table)
    found = held.device_step(bucket)
    rows = step.num_rows
    assert bucket.rows > rows
    assert set(found.slots[rows:].tolist()) == {SPARE}
    assert not found.tokens[rows:].any()
    assert not found.positions[rows:].any()
    assert not found.outputs[rows:].any()
    assert not found.temperatures[rows:].any()
    assert not found.tables.units[len(plan.units) :, 1].any()
    assert not found.tables.rows[rows:, 1].any()


def prepared(held: StepBuffers, shapes: list[Shape]) -> tuple[Any, PackedStep, AttentionPlan, ChoiceTable]:
    step, plan, table = step_of(shapes)
    return held.bucket(plan), step, plan, table
