"""Plans a step's work for an attention kernel, in numpy, once for all layers: which rows read which keys.

The keys of an item are its prefix and its own rows, in this order. The plan cuts the rows into tiles, and
the keys that a tile can see into splits of a fixed size, so that one long session also fills a device. A
tile and a split are a unit of work. The cut of an item depends on that item alone: its results do not change
with company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import IntArray
from cloud_verifier.engine.attention.ancestor_mask import WordArray, ancestor_words
from cloud_verifier.engine.packing import IndexArray, PackedStep

TableArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WorkCut:
    """Holds the sizes by which items of one kind are cut into units."""

    rows: int  # of a tile; with the query heads of a KV head they are the lanes of one matrix product
    split: int  # keys; the last split of a tile has up to half as many more, and no tile has one below half


@dataclass(frozen=True, slots=True)
class Cuts:
    """Holds the cuts of all items. An item's rows alone decide which cut applies."""

    # Tips and trees: few rows, so splits are short, that many programs read the context at a time.
    narrow: WorkCut = WorkCut(rows=8, split=512)
    # Prefill chunks: tiles enough, and each split leaves as much in memory as the rows' attention takes.
    wide: WorkCut = WorkCut(rows=64, split=4096)
    most_narrow: int = 64  # rows of a narrow item; a word of ancestors holds as many


CUTS = Cuts()

UNIT_FIELDS = ("row", "count", "local", "keys", "prefix", "begin", "end", "mask", "words", "split", "splits")
"""The columns of `AttentionPlan.units`:

row, the packed row of the tile's first row; count, its rows (0 in a unit that does nothing); local, the
number of its first row within the item; keys, where the item's keys begin in `AttentionPlan.keys`; prefix,
how many of them are prefix; begin and end, this split's keys, counted within the item; mask, where the
item's ancestor words begin, or -1 for a chain; words, of a row; split and splits, the number of this split,
and of the tile's splits.
"""
ROW_FIELDS = ("partial", "splits")
"""The columns of `AttentionPlan.rows`: the row's first partial result, and how many it has; 1 means none, as
the result is written at once, and 0 that the row is padding."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Holds the tables of a step. Narrow units come first."""

    units: TableArray  # [U, 11]
    num_narrow: int
    rows: TableArray  # [T, 2]
    num_partials: int
    positions: TableArray  # [T]
    slots: tuple[IntArray, ...]  # of the keys, [K] in all: joined where they are sent from
    ancestors: WordArray  # [B] words of `ancestor_mask.ancestor_words`

    @property
    def num_keys(self) -> int:
        return sum(map(len, self.slots))

    @property
    def keys(self) -> TableArray:
        """Return the slots of all keys, int32 [K]."""
        return np.concatenate(self.slots, dtype=np.int32) if self.slots else np.zeros(0, np.int32)

    @property
    def num_wide(self) -> int:
        return len(self.units) - self.num_narrow


def plan_attention(step: PackedStep, cuts: Cuts = CUTS) -> AttentionPlan:
    """Cut `step` into units of work."""
    items = _Items(step, cuts.most_narrow)
    narrow = _tiles(items, ~items.wide, cuts.narrow)
    units = narrow_units = _units(narrow, cuts.narrow)
    rows, num_partials = _rows((narrow,), step.num_rows)
    if bool(items.wide.any()):
        wide = _tiles(items, items.wide, cuts.wide)
        units = np.concatenate((narrow_units, _units(wide, cuts.wide)))
        rows, num_partials = _rows((narrow, wide), step.num_rows)
    return AttentionPlan(
        units=units,
        num_narrow=len(narrow_units),
        rows=rows,
        num_partials=num_partials,
        positions=step.positions.astype(np.int32),
        slots=tuple(part for item in step.items for part in (item.prefix_slots, item.slots)),
        ancestors=items.ancestors,
    )


_ROW, _COUNT, _LOCAL, _KEYS, _PREFIX, _BEGIN, _END, _MASK, _WORDS, _SPLIT, _SPLITS = range(len(UNIT_FIELDS))


class _Items:
    """Arrays over the items of a step, each [I]."""

    def __init__(self, step: PackedStep, most_narrow: int) -> None:
        ends = np.array(step.starts, dtype=np.int64)
        self.starts = ends[:-1]  # packed row of the first row
        self.counts = np.diff(ends)  # rows
        self.prefixes = np.array([len(item.prefix_slots) for item in step.items], dtype=np.int64)
        lengths = self.prefixes + self.counts
        self.keys = lengths.cumsum() - lengths  # where the item's keys begin
        self.wide = self.counts > most_narrow
        self.ancestors, self.mask_starts, self.words = ancestor_words(
            step.parents, self.starts, self.counts, self.wide
        )


def _tiles(items: _Items, chosen: NDArray[np.bool_], cut: WorkCut) -> TableArray:
    """Return the tiles of the chosen items as units of one split, int32 [N, 11]."""
    owners = np.flatnonzero(chosen)
    per_item = -(-items.counts[owners] // cut.rows)
    owner = owners.repeat(per_item)
    local = (np.arange(len(owner)) - (per_item.cumsum() - per_item).repeat(per_item)) * cut.rows
    count = np.minimum(items.counts[owner] - local, cut.rows)
    prefix = items.prefixes[owner]
    end = prefix + local + count  # a row's parent precedes it, so no row sees later keys
    nothing = np.zeros(len(owner), dtype=np.int64)
    columns = (
        *(items.starts[owner] + local, count, local, items.keys[owner], prefix, nothing, end),
        *(
            items.mask_starts[owner],
            items.words[owner],
            nothing,
            np.maximum(1, (end + cut.split // 2) // cut.split),
        ),
    )
    return np.array(columns, dtype=np.int32).T


def _units(tiles: TableArray, cut: WorkCut) -> TableArray:
    """Return the units of tiles, int32 [U, 11]: each as often as it has splits, with the keys of each."""
    splits = tiles[:, _SPLITS]
    units = tiles.repeat(splits, axis=0)
    split = np.arange(len(units)) - (splits.cumsum() - splits).repeat(splits)
    begin = split * cut.split
    units[:, _SPLIT], units[:, _BEGIN] = split, begin
    units[:, _END] = np.where(split == units[:, _SPLITS] - 1, units[:, _END], begin + cut.split)
    return units


def _rows(tables: Sequence[TableArray], num_rows: int) -> tuple[TableArray, int]:
    """Return where each packed row's partial results lie, int32 [T, 2], and their number over all rows."""
    rows = np.zeros((num_rows, len(ROW_FIELDS)), dtype=np.int32)
    for tiles in tables:
        counts = tiles[:, _COUNT]
        rows[_ranges(tiles[:, _ROW], counts), 1] = tiles[:, _SPLITS].repeat(counts)
    partials = np.where(rows[:, 1] > 1, rows[:, 1], 0)
    ends = partials.cumsum()
    rows[:, 0] = ends - partials
    return rows, int(ends[-1]) if num_rows else 0


def _ranges(starts: IndexArray | TableArray, counts: IndexArray | TableArray) -> IndexArray:
    """start, start + 1, ... of every range, one after the other."""
    offsets = (starts - (counts.cumsum() - counts)).repeat(counts)
    numbers: IndexArray = np.arange(len(offsets)) + offsets
    return numbers
