"""Computes attention over token slots by two Triton kernels: one per unit of work, one that adds up splits.

Written for CUDA; with TRITON_INTERPRET=1 in the environment before triton is imported, numpy runs the same
lines on a CPU, which is how they are tested where there is no GPU. `attention_units.py` defines the tables.

Softmax over keys that come block by block is Milakov & Gimelshein 2018 (arXiv 1805.02867), its tiling is
FlashAttention (Dao et al. 2022, arXiv 2205.14135), splits that a second kernel adds up are Flash-Decoding
(Dao et al. 2023), query heads beside rows in one product are from "The Anatomy of a Triton Attention
Kernel" (arXiv 2511.11581). Scores carry a factor log2(e), as the hardware's exponential is of base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634

_LOG2_E = tl.constexpr(LOG2_E)
_NUM_FIELDS = tl.constexpr(11)  # columns of a unit, `attention_units.UNIT_FIELDS`
_NUM_STEPS = tl.constexpr(16)  # splits that `add_splits` takes at a time
_TABLES = ["units", "rows", "positions", "keys", "ancestors"]
"""Arguments that lie anywhere: kernels for each alignment would be compiled again and again while serving."""


@triton.jit
def _load(vectors, columns, exists, MASKED: tl.constexpr, NARROWER: tl.constexpr, DEPTH: tl.constexpr):
    """Elements `columns` [C] of `vectors` [N] (pointers); 0 where no vector exists, and from DEPTH on."""
    places = vectors[:, None] + columns[None, :]
    if MASKED and NARROWER:
        return tl.load(places, mask=exists[:, None] & (columns < DEPTH)[None, :], other=0.0)
    if MASKED:
        return tl.load(places, mask=exists[:, None], other=0.0)
    if NARROWER:
        return tl.load(places, mask=(columns < DEPTH)[None, :], other=0.0)
    return tl.load(places)


@triton.jit
def _fold(
    state_max,  # [M] of the scores so far
    state_sum,  # [M] of 2**(score - max)
    state_values,  # [M, VALUE_BLOCK] of the values, so weighted
    query_1,  # [M, DEPTH_1]
    query_2,  # [M, DEPTH_2], unread if DEPTH_2 is 0
    vectors,  # [N] pointers to the block's keys; behind each key is its value
    exists,  # [N] which of them there are, if MASKED
    seen,  # [M, N] which of them each lane sees, if LIMITED
    factor,
    cap,
    KEY_DEPTH: tl.constexpr,
    VALUE_DEPTH: tl.constexpr,
    DEPTH_1: tl.constexpr,
    DEPTH_2: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
    LIMITED: tl.constexpr,
    CAPPED: tl.constexpr,
    WIDEN: tl.constexpr,  # multiply in float32: the interpreter cannot multiply bfloat16
):
    """Take one block of keys into the state."""
    keys = _load(vectors, tl.arange(0, DEPTH_1), exists, MASKED, DEPTH_1 > KEY_DEPTH, KEY_DEPTH)
    values = _load(
        vectors + KEY_DEPTH, tl.arange(0, VALUE_BLOCK), exists, MASKED, VALUE_BLOCK > VALUE_DEPTH, VALUE_DEPTH
    )
    kind = values.dtype
    if WIDEN:
        keys, values = keys.to(tl.float32), values.to(tl.float32)
    scores = tl.dot(query_1, tl.trans(keys), input_precision="ieee")
    if DEPTH_2 > 0:
        columns = DEPTH_1 + tl.arange(0, DEPTH_2)
        keys = _load(vectors, columns, exists, MASKED, DEPTH_1 + DEPTH_2 > KEY_DEPTH, KEY_DEPTH)
        if WIDEN:
            keys = keys.to(tl.float32)
        scores = tl.dot(query_2, tl.trans(keys), scores, input_precision="ieee")
    scores = scores * factor
    if CAPPED:  # cap * tanh(x) by 2**(2 x log2 e): the interpreter has no tanh
        scores = cap - 2.0 * cap / (tl.exp2(scores) + 1.0)
    if LIMITED:
        scores = tl.where(seen, scores, float("-inf"))
    new_max = tl.maximum(state_max, tl.max(scores, 1))
    anchor = tl.where(new_max == float("-inf"), 0.0, new_max)  # of a lane that has seen no key yet
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(state_max - anchor)
    state_sum = state_sum * shrink + tl.sum(weights, 1)
    weights = weights.to(kind)
    if WIDEN:
        weights = weights.to(tl.float32)
    state_values = tl.dot(weights, values, state_values * shrink[:, None], input_precision="ieee")
    return new_max, state_sum, state_values


@triton.jit
def _is_ancestor(ancestors, words, rows, others, asked):
    """Return whether rows `others` [N] of an item are ancestors of its `rows` [M], or these rows themselves:
    bool [M, N], False where it is not asked."""
    word_at = (rows * words)[:, None] + (others // 64)[None, :]
    word = tl.load(ancestors + word_at, mask=asked, other=0)
    return ((word >> (others % 64)[None, :]) & 1) != 0


@triton.jit
def _store(vectors, values, exists, depth, BLOCK: tl.constexpr):
    """Store the first `depth` elements of `values` [M, BLOCK] at `vectors` [M] (pointers) that exist."""
    columns = tl.arange(0, BLOCK)
    tl.store(vectors[:, None] + columns[None, :], values, mask=exists[:, None] & (columns < depth)[None, :])


@triton.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=_TABLES)
def attend_units(  # noqa: PLR0915 - from tables to results, and the state does not fit into arguments
    query,
    query_row,  # elements from row to row, and from head to head
    query_head,
    kv,
    kv_slot,
    kv_head,
    units,
    rows,
    positions,
    keys,
    ancestors,
    sinks,
    out,  # [T, Hq, Dv]
    partial,  # float32 [P, Hq, Dv], of tiles with several splits
    stats,  # float32 [P, Hq, 2] maximum and sum
    factor,
    cap,
    window,
    NUM_HEADS: tl.constexpr,  # Hq
    SHARE: tl.constexpr,  # query heads of a KV head
    HEADS: tl.constexpr,  # of them in one program, a power of two
    LANES: tl.constexpr,  # M: rows of a tile x HEADS, at least 16
    BLOCK: tl.constexpr,  # N: keys at a time
    KEY_DEPTH: tl.constexpr,
    VALUE_DEPTH: tl.constexpr,
    DEPTH_1: tl.constexpr,
    DEPTH_2: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Compute one unit for one group of heads: grid (Hkv * groups, U)."""
    groups: tl.constexpr = (SHARE + HEADS - 1) // HEADS
    kv_index = tl.program_id(0) // groups
    unit = units + tl.program_id(1) * _NUM_FIELDS
    count = tl.load(unit + 1)
    if count == 0:
        return
    row, local = tl.load(unit), tl.load(unit + 2)
    prefix, begin, end = tl.load(unit + 4), tl.load(unit + 5), tl.load(unit + 6)
    mask_at, split, splits = tl.load(unit + 7), tl.load(unit + 9), tl.load(unit + 10)
    keys += tl.load(unit + 3)
    kv += kv_index.to(tl.int64) * kv_head

    lanes = tl.arange(0, LANES)
    lane_row = lanes // HEADS
    lane_head = (tl.program_id(0) % groups) * HEADS + lanes % HEADS
    taken = (lane_row < count) & (lane_head < SHARE)
    packed, head = row + lane_row, kv_index * SHARE + lane_head
    place = tl.load(positions + packed, mask=taken, other=0)
    query_at = query + packed * query_row + head * query_head
    query_1 = _load(query_at, tl.arange(0, DEPTH_1), taken, True, DEPTH_1 > KEY_DEPTH, KEY_DEPTH)
    query_2 = query_1
    if DEPTH_2 > 0:
        columns = DEPTH_1 + tl.arange(0, DEPTH_2)
        query_2 = _load(query_at, columns, taken, True, DEPTH_1 + DEPTH_2 > KEY_DEPTH, KEY_DEPTH)
    if WIDEN:
        query_1, query_2 = query_1.to(tl.float32), query_2.to(tl.float32)

    steps = tl.arange(0, BLOCK)
    state_max, state_sum = tl.full([LANES], float("-inf"), tl.float32), tl.zeros([LANES], tl.float32)
    state_values = tl.zeros([LANES, VALUE_BLOCK], tl.float32)
    if WINDOWED:  # a key's position is at most its number, so no row sees a key before this one
        earliest = tl.min(tl.where(taken, place, 2147483647)) - window + 1
        begin = tl.maximum(begin, earliest // BLOCK * BLOCK)
    whole = begin + tl.maximum(tl.minimum(end, prefix) - begin, 0) // BLOCK * BLOCK

    for at in range(begin, whole, BLOCK):  # blocks of nothing but prefix
        slots = tl.load(keys + at + steps).to(tl.int64)
        seen = taken  # unread without a window
        if WINDOWED:
            seen = place[:, None] - (at + steps)[None, :] < window
        state_max, state_sum, state_values = _fold(
            state_max, state_sum, state_values, query_1, query_2, kv + slots * kv_slot, taken, seen,
            factor, cap, KEY_DEPTH, VALUE_DEPTH, DEPTH_1, DEPTH_2, VALUE_BLOCK, False, WINDOWED,
            CAPPED, WIDEN,
        )  # fmt: skip

    words = tl.load(unit + 8)
    own_row = local + lane_row
    tree_end = tl.where(mask_at < 0, prefix, end)
    # Not pipelined: the words of ancestors would take more shared memory than keys and values.
    for at in tl.range(whole, end, BLOCK, num_stages=1):  # the prefix's last keys, and the item's rows
        number = at + steps
        exists = number < end
        slots = tl.load(keys + number, mask=exists, other=0).to(tl.int64)
        own = exists & (number >= prefix)
        key_row = tl.where(own, number - prefix, 0)
        in_tree, in_chain = own & (number < tree_end), own & (number >= tree_end)
        seen = _is_ancestor(ancestors + mask_at, words, own_row, key_row, taken[:, None] & in_tree[None, :])
        seen = seen | (in_chain[None, :] & (key_row[None, :] <= own_row[:, None]))
        seen = seen | (number < prefix)[None, :]
        if WINDOWED:
            key_place = tl.load(positions + row - local + key_row, mask=own, other=0)
            key_place = tl.where(own, key_place, number)
            seen = seen & (place[:, None] - key_place[None, :] < window)
        seen = seen & exists[None, :]
        state_max, state_sum, state_values = _fold(
            state_max, state_sum, state_values, query_1, query_2, kv + slots * kv_slot, exists, seen,
            factor, cap, KEY_DEPTH, VALUE_DEPTH, DEPTH_1, DEPTH_2, VALUE_BLOCK, True, True,
            CAPPED, WIDEN,
        )  # fmt: skip

    if splits == 1:
        if SINKS:
            sink = tl.load(sinks + head, mask=taken, other=0.0).to(tl.float32) * _LOG2_E
            new_max = tl.maximum(state_max, sink)
            state_sum = state_sum * tl.exp2(state_max - new_max) + tl.exp2(sink - new_max)
            state_values = state_values * tl.exp2(state_max - new_max)[:, None]
        result = state_values / tl.where(taken, state_sum, 1.0)[:, None]
        out_at = out + (packed * NUM_HEADS + head) * VALUE_DEPTH
        _store(out_at, result.to(out.dtype.element_ty), taken, VALUE_DEPTH, VALUE_BLOCK)
    else:
        first = tl.load(rows + 2 * packed, mask=taken, other=0)
        partial_row = (first + split).to(tl.int64) * NUM_HEADS + head
        tl.store(stats + 2 * partial_row, state_max, mask=taken)
        tl.store(stats + 2 * partial_row + 1, state_sum, mask=taken)
        num_stored = tl.where(begin < end, VALUE_DEPTH, 0)  # nothing where a window begins behind the split
        _store(partial + partial_row * VALUE_DEPTH, state_values, taken, num_stored, VALUE_BLOCK)


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def add_splits(
    rows,
    partial,
    stats,
    sinks,
    out,
    NUM_HEADS: tl.constexpr,
    VALUE_DEPTH: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Add up one row and head from its splits, grid (Hq, T). One-split rows are done; padding rows get 0."""
    head, row = tl.program_id(0), tl.program_id(1)
    splits = tl.load(rows + 2 * row + 1)
    if splits == 1:
        return
    first = tl.load(rows + 2 * row)
    depths = tl.arange(0, VALUE_BLOCK)
    total_max = tl.full([1], float("-inf"), tl.float32)
    total_sum = tl.zeros([1], tl.float32)
    total = tl.zeros([VALUE_BLOCK], tl.float32)
    for at in range(0, splits, _NUM_STEPS):
        number = at + tl.arange(0, _NUM_STEPS)
        partial_row = (first + number).to(tl.int64) * NUM_HEADS + head
        maxima = tl.load(stats + 2 * partial_row, mask=number < splits, other=float("-inf"))
        sums = tl.load(stats + 2 * partial_row + 1, mask=number < splits, other=0.0)
        used = (maxima > float("-inf"))[:, None] & (depths < VALUE_DEPTH)[None, :]
        values = tl.load(
            partial + (partial_row * VALUE_DEPTH)[:, None] + depths[None, :], mask=used, other=0.0
        )
        new_max = tl.maximum(total_max, tl.max(maxima, 0))
        anchor = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights, shrink = tl.exp2(maxima - anchor), tl.exp2(total_max - anchor)
        total_sum = total_sum * shrink + tl.sum(weights * sums, 0)
        total = total * shrink + tl.sum(weights[:, None] * values, 0)
        total_max = new_max
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        new_max = tl.maximum(total_max, sink)
        total_sum = total_sum * tl.exp2(total_max - new_max) + tl.exp2(sink - new_max)
        total = total * tl.exp2(total_max - new_max)
    result = total / tl.where(total_sum > 0.0, total_sum, 1.0)
    out_at = out + (row * NUM_HEADS + head) * VALUE_DEPTH
    tl.store(out_at + depths, result.to(out.dtype.element_ty), mask=depths < VALUE_DEPTH)
