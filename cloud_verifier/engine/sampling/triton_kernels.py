"""Chooses from logits by Triton kernels; a vocabulary is cut into blocks.

`find_best` finds each block's best logits. `find_winner` adds the noise of `common.noise` and finds each
block's best scores. `merge` makes them a choice and a margin. `weigh` sums the weights of a nucleus.
As with those of attention, TRITON_INTERPRET=1 lets numpy run them on a CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common import choice as reference
from common import noise

_GAMMA = tl.constexpr(noise.GAMMA)
_FACTOR_1, _FACTOR_2 = (tl.constexpr(factor) for factor in noise.MIX_FACTORS)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (tl.constexpr(shift) for shift in noise.MIX_SHIFTS)
_UNUSED_BITS = tl.constexpr(64 - noise.UNIFORM_BITS)
_CELL = tl.constexpr(2.0**-noise.UNIFORM_BITS)
_WEIGHT_UNIT = tl.constexpr(reference.WEIGHT_UNIT)
_WHOLE = tl.constexpr(1.5 * 2.0**52)  # from here on a float64 has no fraction, so adding it rounds

_TABLES = ["temperatures", "keys", "last_values", "last_tokens"]
"""Arguments that lie anywhere, as in those of attention."""


@triton.jit
def _top_two(scores, tokens):
    """Return the best score, its token (the lowest of equals) and the runner-up's score."""
    best = tl.max(scores, 0)
    token = tl.min(tl.where(scores == best, tokens, 2147483647), 0)
    second = tl.max(tl.where(tokens == token, float("-inf"), scores), 0)
    return best, token, second


@triton.jit
def find_best(logits, logits_row, block_best, block_token, block_second, num_tokens, BLOCK: tl.constexpr):
    """Find the best and second logit of each block, grid (blocks, rows); the best is nan if any logit is."""
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    exists = tokens < num_tokens
    values = tl.load(logits + row.to(tl.int64) * logits_row + tokens, mask=exists, other=float("-inf"))
    broken = tl.max((values != values).to(tl.int32), 0)
    best, token, second = _top_two(values, tokens)
    place = row * blocks + block
    tl.store(block_best + place, tl.where(broken > 0, float("nan"), best))
    tl.store(block_token + place, token)
    tl.store(block_second + place, second)


@triton.jit
def _row_best(block_best, row, blocks, BLOCKS: tl.constexpr):
    """Return the best logit of a row, nan if any is."""
    number = tl.arange(0, BLOCKS)
    bests = tl.load(block_best + row * blocks + number, mask=number < blocks, other=float("-inf"))
    broken = tl.max((bests != bests).to(tl.int32), 0)
    return tl.where(broken > 0, float("nan"), tl.max(bests, 0))


@triton.jit
def _scaled(logits, logits_row, row, tokens, exists, best, temperature):
    """Logits below the best, over the temperature, in float64; -inf where there is no token."""
    values = tl.load(logits + row.to(tl.int64) * logits_row + tokens, mask=exists, other=float("-inf"))
    return (values.to(tl.float64) - best.to(tl.float64)) / temperature


@triton.jit
def _gumbel(key, tokens):
    """`common.noise.gumbel` under an unsigned key."""
    state = key + (tokens + 1).to(tl.uint64) * _GAMMA
    state = (state ^ (state >> _SHIFT_1)) * _FACTOR_1
    state = (state ^ (state >> _SHIFT_2)) * _FACTOR_2
    state = state ^ (state >> _SHIFT_3)
    uniform = ((state >> _UNUSED_BITS).to(tl.int64).to(tl.float64) + 0.5) * _CELL
    return -tl.log(-tl.log(uniform))


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def find_winner(
    logits,
    logits_row,
    temperatures,  # float64 [R], 0 for greedy rows, which have no winner here
    keys,  # int64 [R] of `noise.noise_keys`
    last_values,  # float64 [R] with `last_tokens` the last token that filters keep, if BOUNDED
    last_tokens,  # int64 [R]
    block_best,  # of `find_best`
    winner_best,  # float64 [R, blocks]
    winner_token,
    winner_second,
    num_tokens,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """Find the best and second score of each block, grid (blocks, rows)."""
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    temperature = tl.load(temperatures + row)
    if temperature == 0.0:
        return
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    best = _row_best(block_best, row, blocks, BLOCKS)
    scores = _scaled(logits, logits_row, row, tokens, tokens < num_tokens, best, temperature)
    if BOUNDED:
        last = tl.load(last_values + row)
        kept = (scores > last) | ((scores == last) & (tokens <= tl.load(last_tokens + row)))
        scores = tl.where(kept, scores, float("-inf"))
    scores += _gumbel(tl.load(keys + row).to(tl.uint64, bitcast=True), tokens)
    top, token, second = _top_two(scores, tokens)
    place = row * blocks + block
    tl.store(winner_best + place, top)
    tl.store(winner_token + place, token)
    tl.store(winner_second + place, second)


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def weigh(
    logits,
    logits_row,
    temperatures,
    block_best,
    weights,
    num_tokens,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Sum each block's integer weights, `common.choice.WEIGHT_UNIT`; int64 [R, blocks], grid (blocks,
    rows)."""
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    best = _row_best(block_best, row, blocks, BLOCKS)
    scaled = _scaled(logits, logits_row, row, tokens, tokens < num_tokens, best, tl.load(temperatures + row))
    shares = (
        tl.exp(scaled) * _WEIGHT_UNIT + _WHOLE
    ) - _WHOLE  # to the nearest integer, of two to the even one
    tl.store(weights + row * blocks + block, tl.sum(shares.to(tl.int64), 0))


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def merge(
    temperatures,
    block_best,
    block_token,
    block_second,
    winner_best,
    winner_token,
    winner_second,
    choices,  # int32 [R]
    margins,  # float32 [R]; nan if the logits have no finite maximum
    blocks,
    BLOCKS: tl.constexpr,
):
    """Choose one row's token and margin, grid (rows,)."""
    row = tl.program_id(0)
    number = tl.arange(0, BLOCKS)
    exists, place = number < blocks, row * blocks + number
    raw_best = _row_best(block_best, row, blocks, BLOCKS)
    broken = (raw_best != raw_best) | (tl.abs(raw_best) == float("inf"))
    if tl.load(temperatures + row) == 0.0:
        bests = tl.load(block_best + place, mask=exists, other=float("-inf")).to(tl.float64)
        tokens = tl.load(block_token + place, mask=exists, other=2147483647)
        seconds = tl.load(block_second + place, mask=exists, other=float("-inf")).to(tl.float64)
    else:
        bests = tl.load(winner_best + place, mask=exists, other=float("-inf"))
        tokens = tl.load(winner_token + place, mask=exists, other=2147483647)
        seconds = tl.load(winner_second + place, mask=exists, other=float("-inf"))
    best = tl.max(bests, 0)
    token = tl.min(tl.where(bests == best, tokens, 2147483647), 0)
    second = tl.max(tl.where(tokens == token, seconds, bests), 0)
    margin = (best - second).to(tl.float32)
    tl.store(choices + row, token)
    tl.store(margins + row, tl.where(broken, float("nan"), margin))
