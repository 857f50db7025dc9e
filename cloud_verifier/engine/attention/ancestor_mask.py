"""Says which rows of its tree each row sees: itself and its ancestors, as a mask or as bits in words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import IntArray
from cloud_verifier.engine.packing import IndexArray

WordArray = NDArray[np.int64]


def ancestor_mask(parents: IntArray) -> NDArray[np.bool_]:
    """Return the rows that each row of an item sees: itself and its ancestors. parents [T]; bool [T, T]."""
    num_rows = len(parents)
    if bool((parents == np.arange(-1, num_rows - 1)).all()):
        return np.tri(num_rows, dtype=np.bool_)
    mask = np.eye(num_rows, dtype=np.bool_)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask


def ancestor_words(
    parents: IndexArray, starts: IndexArray, counts: IndexArray, wide: NDArray[np.bool_]
) -> tuple[WordArray, IndexArray, IndexArray]:
    """Return the mask of each item as words. Bit i of a row's words: row i of its item is an ancestor, or the
    row itself. One word for each packed row comes first, then the words of wide trees, several a row.

    `parents` [T] holds packed rows, as in `PackedStep`. The items' first packed rows, numbers of rows, and
    whether a row's bits take more than a word are [I]. The words [B] come with each item's first word [I] and
    the words of a row [I]: -1 and 0 for a wide chain, which has none.
    """
    begins, per_row = starts.copy(), np.ones(len(counts), dtype=np.int64)
    parts = [_narrow_words(np.where(wide.repeat(counts), -1, parents), starts.repeat(counts))]
    for item in np.flatnonzero(wide).tolist():
        start, count = int(starts[item]), int(counts[item])
        local = parents[start : start + count] - start
        if bool((local[1:] == np.arange(count - 1)).all()):
            begins[item], per_row[item] = -1, 0
        else:
            begins[item], per_row[item] = sum(map(len, parts)), -(-count // 64)
            parts.append(_wide_words(local, int(per_row[item])))
    return np.concatenate(parts), begins, per_row


def _narrow_words(parents: IndexArray, starts: IndexArray) -> WordArray:
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


def _wide_words(parents: IndexArray, words: int) -> WordArray:
    """`words` words for each row of one item, row after row; `parents` are its row numbers, below 0 for
    none."""
    masks: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        masks.append((1 << row) | (masks[parent] if parent >= 0 else 0))
    packed = b"".join(mask.to_bytes(8 * words, "little") for mask in masks)
    return np.frombuffer(packed, dtype="<i8").astype(np.int64)
