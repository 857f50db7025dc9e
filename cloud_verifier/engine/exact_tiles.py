"""A step cut into tiles of a fixed number of rows, every row an item of its own.

In a tile nothing depends on what else is in the step but where a row stands: the shapes are always the same,
and a row's keys are what is on its own path. A tip decoded plainly, a drafted node and a row of a prompt are
then one and the same computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cloud_verifier.core.target import IntArray, StepItem
from cloud_verifier.engine.packing import IndexArray, PackedStep

TILE_ROWS = 32
"""Rows of a tile unless told otherwise. On a CPU 32 rows take about twice the time of one, and a step of more
rows takes a forward for each 32."""

MAX_TILE_ROWS = 1024

_NONE: IntArray = np.zeros(0, np.int32)
_ROOT: IntArray = np.full(1, -1, np.int32)


@dataclass(frozen=True, slots=True)
class Tile:
    """M rows of one forward: the step's own, then padding that writes to the trash slot."""

    step: PackedStep  # the R <= M rows that are real, each an item of its own
    inputs: IndexArray  # [3, M] tokens, positions, slots
    outputs: IndexArray  # [O] rows of the tile whose logits are wanted


def rows_alone(step: PackedStep) -> PackedStep:
    """The same rows, each an item whose prefix is all that it sees: the prefix, then its ancestors."""
    if len(step.items) == step.num_rows and all(len(item.tokens) == 1 for item in step.items):
        return step
    items = tuple(alone for item in step.items for alone in _alone(item))
    starts = tuple(range(len(items) + 1))
    return replace(step, items=items, starts=starts, parents=np.full(len(items), -1, np.int64))


def tiles(step: PackedStep, num_rows: int, trash: int) -> Iterator[Tile]:
    """Cut `step`, whose rows are alone, into tiles of `num_rows`, to be run in turn: parents come first."""
    for first in range(0, step.num_rows, num_rows):
        yield _tile(step, first, min(first + num_rows, step.num_rows), num_rows, trash)


def _tile(step: PackedStep, first: int, end: int, num_rows: int, trash: int) -> Tile:
    count = end - first
    inputs = np.zeros((3, num_rows), np.int64)
    inputs[2] = trash
    inputs[:, :count] = step.tokens[first:end], step.positions[first:end], step.slots[first:end]
    outputs = step.outputs[(step.outputs >= first) & (step.outputs < end)] - first
    own = PackedStep(
        items=step.items[first:end],
        starts=tuple(range(count + 1)),
        tokens=step.tokens[first:end],
        positions=step.positions[first:end],
        slots=step.slots[first:end],
        parents=step.parents[first:end],
        outputs=outputs,
    )
    return Tile(own, inputs, outputs)


def _alone(item: StepItem) -> Iterator[StepItem]:
    """Each row of `item` as an item without outputs."""
    for row, path in enumerate(_paths(item)):
        own = slice(row, row + 1)
        yield replace(
            item,
            prefix_slots=path,
            tokens=item.tokens[own],
            positions=item.positions[own],
            parents=_ROOT,
            slots=item.slots[own],
            outputs=_NONE,
        )


def _paths(item: StepItem) -> list[IntArray]:
    """The slots that each row sees besides its own, by position."""
    paths: list[IntArray] = []
    for parent in item.parents.tolist():
        above = item.prefix_slots
        if parent >= 0:
            above = np.append(paths[parent], item.slots[parent])
        paths.append(above)
    return paths
