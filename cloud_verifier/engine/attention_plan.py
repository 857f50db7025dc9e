"""What an attention kernel needs to know of a step: who reads which keys, in numpy, once for all layers.

The keys of an item are its prefix and its own rows, one after the other. Its rows are cut into tiles, and
the keys that a tile can see into splits of a fixed size, so that one long session fills a device, too. A
tile and a split are a unit of work. How an item is cut depends on the item alone: its results do not change
with company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.target import StepItem
from cloud_verifier.engine.packing import IndexArray, PackedStep

TableArray = NDArray[np.int32]
WordArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """How items of one kind are cut into units."""

    rows: int  # of a tile; with the query heads of a KV head they are the lanes of one matrix product
    split: int  # keys; the last split of a tile has up to half as many more, and no tile has one below half


@dataclass(frozen=True, slots=True)
class Cuts:
    """How all items are cut. Which cut an item gets depends on its rows alone."""

    # Tips and trees: few rows, so splits are short, that many programs read the context at a time.
    narrow: Cut = Cut(rows=8, split=512)
    # Prefill chunks: tiles enough, and each split leaves as much in memory as the rows' attention takes.
    wide: Cut = Cut(rows=64, split=4096)
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
    """The tables of a step. Narrow units come first."""

    units: TableArray  # [U, 11]
    num_narrow: int
    rows: TableArray  # [T, 2]
    num_partials: int
    positions: TableArray  # [T]
    keys: TableArray  # [K] slots
    bits: WordArray  # [B] bit i of a row's words: row i of its item is an ancestor, or the row itself

    @property
    def num_wide(self) -> int:
        return len(self.units) - self.num_narrow


def plan_attention(step: PackedStep, cuts: Cuts = CUTS) -> AttentionPlan:
    """Cut `step` into units."""
    starts = np.asarray(step.starts, dtype=np.int64)
    counts = np.diff(starts)
    filled = np.flatnonzero(counts)
    members = [step.items[index] for index in filled.tolist()]
    items = _Items(starts[filled], counts[filled], [len(item.prefix_slots) for item in members])
    wide = items.counts > cuts.most_narrow
    narrow_units = _units(items, np.flatnonzero(~wide), cuts.narrow)
    units = narrow_units
    if bool(wide.any()):
        units = np.concatenate((units, _units(items, np.flatnonzero(wide), cuts.wide)))
    bits, offsets, words = _ancestors(step.parents, items)
    owners = units[:, _KEYS]
    units[:, _BITS], units[:, _WORDS] = offsets[owners], words[owners]
    units[:, _KEYS] = items.keys[owners]
    rows, num_partials = _rows(units, step.num_rows)
    return AttentionPlan(
        units=units,
        num_narrow=len(narrow_units),
        rows=rows,
        num_partials=num_partials,
        positions=step.positions.astype(np.int32),
        keys=_keys(members),
        bits=bits,
    )


_ROW, _COUNT, _LOCAL, _KEYS, _PREFIX, _BEGIN, _END, _BITS, _WORDS, _SPLIT, _SPLITS = range(len(UNIT_FIELDS))


class _Items:
    """Arrays over the items that have rows."""

    def __init__(self, starts: IndexArray, counts: IndexArray, prefixes: Sequence[int]) -> None:
        self.starts = starts  # packed row of the first row
        self.counts = counts  # rows
        self.prefixes = np.array(prefixes, dtype=np.int64)
        lengths = self.prefixes + counts
        self.keys = np.cumsum(lengths) - lengths  # where each one's keys begin

    def __len__(self) -> int:
        return len(self.counts)


def _keys(items: Sequence[StepItem]) -> TableArray:
    parts = [part for item in items for part in (item.prefix_slots, item.slots)]
    return np.concatenate(parts, dtype=np.int32) if parts else np.zeros(0, np.int32)


def _units(items: _Items, members: IndexArray, cut: Cut) -> TableArray:
    """The units of the items numbered `members`, int32 [U, 11]; the column `keys` holds the item's number."""
    tiles = -(-items.counts[members] // cut.rows)
    owner = np.repeat(members, tiles)
    local = (np.arange(len(owner)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * cut.rows
    count = np.minimum(items.counts[owner] - local, cut.rows)
    ends = items.prefixes[owner] + local + count  # a row's parent precedes it, so no row sees later keys
    splits = np.maximum(1, (ends + cut.split // 2) // cut.split)
    tile = np.repeat(np.arange(len(owner)), splits)
    split = np.arange(len(tile)) - np.repeat(np.cumsum(splits) - splits, splits)
    last = split == splits[tile] - 1
    units = np.empty((len(tile), len(UNIT_FIELDS)), dtype=np.int32)
    columns = {
        _ROW: (items.starts[owner] + local)[tile],
        _COUNT: count[tile],
        _LOCAL: local[tile],
        _KEYS: owner[tile],
        _PREFIX: items.prefixes[owner][tile],
        _BEGIN: split * cut.split,
        _END: np.where(last, ends[tile], (split + 1) * cut.split),
        _SPLIT: split,
        _SPLITS: splits[tile],
    }
    for field, column in columns.items():
        units[:, field] = column
    return units


def _rows(units: TableArray, num_rows: int) -> tuple[TableArray, int]:
    """Where each packed row's partial results lie, int32 [T, 2], and their number over all rows."""
    tiles = units[units[:, _SPLIT] == 0].astype(np.int64)
    counts = tiles[:, _COUNT]
    splits = np.zeros(num_rows, dtype=np.int64)
    splits[_ranges(tiles[:, _ROW], counts)] = np.repeat(tiles[:, _SPLITS], counts)
    partials = np.where(splits > 1, splits, 0)
    ends = np.cumsum(partials)
    return np.stack((ends - partials, splits), axis=1).astype(np.int32), int(partials.sum())


def _ancestors(parents: IndexArray, items: _Items) -> tuple[WordArray, IndexArray, IndexArray]:
    """Ancestor words, and per item where its words begin (-1 for a chain) and how many a row has.

    `parents` [T] holds packed rows, as in `PackedStep`.
    """
    offsets, words = np.full(len(items), -1, dtype=np.int64), np.zeros(len(items), dtype=np.int64)
    branched = np.flatnonzero(~_chains(parents, items))
    if not len(branched):
        return np.zeros(0, np.int64), offsets, words
    words[branched] = -(-items.counts[branched] // 64)
    sizes = items.counts[branched] * words[branched]
    offsets[branched] = np.cumsum(sizes) - sizes
    bits = np.empty(int(sizes.sum()), dtype=np.int64)
    small = branched[words[branched] == 1]
    if len(small):
        rows, places = (
            _ranges(items.starts[small], items.counts[small]),
            _ranges(offsets[small], items.counts[small]),
        )
        bits[places] = _words_of_small(
            parents, rows, rows - np.repeat(items.starts[small], items.counts[small])
        )
    for item in branched[words[branched] > 1].tolist():
        start, count = int(items.starts[item]), int(items.counts[item])
        local = parents[start : start + count] - start
        bits[offsets[item] : offsets[item] + count * words[item]] = _words_of_large(local, int(words[item]))
    return bits, offsets, words


def _chains(parents: IndexArray, items: _Items) -> NDArray[np.bool_]:
    """Which items are chains: every row below the one before it, the first below the prefix."""
    follows = parents == np.arange(-1, len(parents) - 1)
    follows[items.starts] = parents[items.starts] < 0
    if not len(items):
        return np.zeros(0, dtype=np.bool_)
    chains: NDArray[np.bool_] = np.logical_and.reduceat(follows, items.starts)
    return chains


def _ranges(starts: IndexArray, counts: IndexArray) -> IndexArray:
    """start, start + 1, ... of every range, one after the other."""
    offsets: IndexArray = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return np.arange(len(offsets)) + offsets


def _words_of_small(parents: IndexArray, rows: IndexArray, local: IndexArray) -> WordArray:
    """One word for each of the packed `rows`, whose numbers within their items are `local` (below 64).

    In round k each row takes over what its ancestor 2**k above knows, so a depth of 64 takes 6 rounds.
    """
    words = np.zeros(len(parents), dtype=np.int64)
    words[rows] = np.left_shift(np.int64(1), local)
    above = np.full(len(parents), -1, dtype=np.int64)
    above[rows] = parents[rows]
    below = rows[above[rows] >= 0]
    while len(below):
        words[below] |= words[above[below]]
        above[below] = above[above[below]]
        below = below[above[below] >= 0]
    return words[rows]


def _words_of_large(parents: IndexArray, words: int) -> WordArray:
    """`words` words for each row of one item, row after row; `parents` are its row numbers, below 0 for
    none."""
    masks: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        masks.append((1 << row) | (masks[parent] if parent >= 0 else 0))
    packed = b"".join(mask.to_bytes(8 * words, "little") for mask in masks)
    return np.frombuffer(packed, dtype="<i8").astype(np.int64)
