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
from cloud_verifier.engine.packing import IndexArray, PackedStep

TableArray = NDArray[np.int32]
WordArray = NDArray[np.int64]


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

UNIT_FIELDS = ("row", "count", "local", "keys", "prefix", "begin", "end", "bits", "words", "split", "splits")
"""The columns of `AttentionPlan.units`:

row, the packed row of the tile's first row; count, its rows (0 in a unit that does nothing); local, the
number of its first row within the item; keys, where the item's keys begin in `AttentionPlan.keys`; prefix,
how many of them are prefix; begin and end, this split's keys, counted within the item; bits, where the
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
    bits: WordArray  # [B] bit i of a row's words: row i of its item is an ancestor, or the row itself

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
    bits = _words(step.parents, items)
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
        bits=bits,
    )


_ROW, _COUNT, _LOCAL, _KEYS, _PREFIX, _BEGIN, _END, _BITS, _WORDS, _SPLIT, _SPLITS = range(len(UNIT_FIELDS))


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
        self.bits = self.starts.copy()  # where its words begin: those of narrow items lie as their rows do
        self.words = np.ones(len(self.counts), dtype=np.int64)  # of a row; 0 for a chain, which has none


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
        *(items.bits[owner], items.words[owner], nothing, np.maximum(1, (end + cut.split // 2) // cut.split)),
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


def _words(parents: IndexArray, items: _Items) -> WordArray:
    """Ancestor words: one for each packed row, then those of wide items that are no chains, several a row.

    `parents` [T] holds packed rows, as in `PackedStep`. Notes in `items` where each item's words begin.
    """
    starts = items.starts.repeat(items.counts)
    words = _words_of_narrow(np.where(items.wide.repeat(items.counts), -1, parents), starts)
    more = [words]
    for item in np.flatnonzero(items.wide).tolist():
        start, count = int(items.starts[item]), int(items.counts[item])
        local = parents[start : start + count] - start
        if bool((local[1:] == np.arange(count - 1)).all()):
            items.bits[item], items.words[item] = -1, 0
        else:
            items.bits[item], items.words[item] = sum(map(len, more)), -(-count // 64)
            more.append(_words_of_wide(local, int(items.words[item])))
    return np.concatenate(more)


def _words_of_narrow(parents: IndexArray, starts: IndexArray) -> WordArray:
    """Return a word for each packed row of items of at most 64 rows that begin at `starts` [T].

    In round k each row takes over what its ancestor 2**k above knows, so a depth of 64 takes 6 rounds.
    """
    above = parents
    words: WordArray = np.left_shift(np.int64(1), (np.arange(len(parents)) - starts) & 63)
    below = np.flatnonzero(above >= 0)
    while len(below):
        ancestors = above[below]
        words[below] |= words[ancestors]
        above[below] = further = above[ancestors]
        below = below[further >= 0]
    return words


def _words_of_wide(parents: IndexArray, words: int) -> WordArray:
    """`words` words for each row of one item, row after row; `parents` are its row numbers, below 0 for
    none."""
    masks: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        masks.append((1 << row) | (masks[parent] if parent >= 0 else 0))
    packed = b"".join(mask.to_bytes(8 * words, "little") for mask in masks)
    return np.frombuffer(packed, dtype="<i8").astype(np.int64)
