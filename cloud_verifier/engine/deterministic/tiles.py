"""Cuts a step into tiles of a fixed number of rows, every row an item of its own.

In a tile nothing depends on the rest of the step but a row's place: the shapes are always the same,
and a row's keys are those of its own path. A tip decoded plainly, a drafted node and a row of a prompt are
then the same computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cloud_verifier.core.engine_protocol import IntArray, StepItem
from cloud_verifier.engine.packing import IndexArray, PackedStep

TILE_ROWS = 32
"""Rows of a tile. On a CPU 32 rows take about twice the time of one, and a step of more
rows takes a forward for each 32."""

_NONE: IntArray = np.zeros(0, np.int32)
_ROOT: IntArray = np.full(1, -1, np.int32)


def rows_alone(step: PackedStep) -> PackedStep:
    """Make each row an item whose prefix is all that the row sees: the prefix, then its ancestors."""
    if len(step.items) == step.num_rows and all(len(item.tokens) == 1 for item in step.items):
        return step
    items = tuple(alone for item in step.items for alone in _alone(item))
    starts = tuple(range(len(items) + 1))
    return replace(step, items=items, starts=starts, parents=np.full(len(items), -1, np.int64))


def tiles(step: PackedStep, num_rows: int, trash: int) -> Iterator[tuple[PackedStep, IndexArray]]:
    """Cut `step`, whose rows are alone, into tiles of M = `num_rows`, to be run in turn: parents come first.

    Each comes with its inputs [3, M]: tokens, positions and slots of its rows, then of padding that writes to
    the trash slot.
    """
    for first in range(0, step.num_rows, num_rows):
        rows = slice(first, first + num_rows)
        tile = replace(
            step,
            items=step.items[rows],
            starts=tuple(range(len(step.items[rows]) + 1)),
            tokens=step.tokens[rows],
            positions=step.positions[rows],
            slots=step.slots[rows],
            parents=step.parents[rows],
            outputs=step.outputs[(step.outputs >= first) & (step.outputs < rows.stop)] - first,
        )
        inputs = np.zeros((3, num_rows), np.int64)
        inputs[2] = trash
        inputs[:, : tile.num_rows] = tile.tokens, tile.positions, tile.slots
        yield tile, inputs


def _alone(item: StepItem) -> Iterator[StepItem]:
    """Each row of `item` as an item without outputs, after the slots that it sees besides its own."""
    paths: list[IntArray] = []
    for row, parent in enumerate(item.parents.tolist()):
        above = item.prefix_slots if parent < 0 else np.append(paths[parent], item.slots[parent])
        paths.append(above)
        own = slice(row, row + 1)
        yield replace(
            item,
            prefix_slots=above,
            tokens=item.tokens[own],
            positions=item.positions[own],
            parents=_ROOT,
            slots=item.slots[own],
            outputs=_NONE,
        )
