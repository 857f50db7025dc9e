"""Chooses from logits by Triton kernels; a vocabulary is cut into blocks.

`find_best` finds each block's best logits. Where tokens are filtered, `narrow` searches the last one kept, a
few passes for top-k and as many for top-p, and `find_edge` numbers those that are equal to it. `find_winner`
adds noise and finds the two tokens of each block that may win, and `merge` chooses among them.
As with those of attention, TRITON_INTERPRET=1 lets numpy run them on a CPU.

The filters are `common.choice`'s: they keep the front of one order, best score first, lowest id first among
equals. Float32 logits are in the order of their bits, so a place in it is a *distance*, the number of floats
between the best logit and a token's: an integer below 2**32. A pass sums, for `EDGES` distances at once, the
tokens or weights that lie nearer. The first one's distances grow by powers of 4, as most rows keep a few
tokens near the best; each other one divides what is left by `EDGES`. The sums are integers, so their order
does not matter, and blocks whose best token is too far are not read. Scores that are equal though their
logits are not, by rounding, are one class of equals, which `find_edge` is for.

float64 runs at a 64th of the rate of float32 on consumer GPUs, and two logarithms a token are most of a
choice. So `find_winner` computes in float32, with a bound for its error, and only its two tokens of a block
are computed again in float64, by `merge`. A block in which a third token might be among the best two is
computed in float64 as a whole. The bound, in units of the score (natural logarithms below `log`):

- `log` is within 2**-21 * max(1, |result|), as both the hardware's (2**-22, in powers of two) and libdevice's
  are. A number of 52 bits becomes a float32 with a relative error of 2**-24, and the half added to it with
  another one.
- Let u be the uniform number and r = 1 - u. If r < 1/32, -log u is a series of five terms: the next one is
  r**5 / 6 < 2**-27 of the sum, and its roundings 2**-21. Else -log u >= r >= 1/32, and an absolute error of
  2**-22 from u and of 2**-21 * max(1, -log u) is a relative one below 2**-15.4.
- The noise -log(-log u) has that relative error as an absolute one, and its own logarithm's, which is
  2**-21 * 37 < 2**-15.7 where the noise is large (r < 1/32) and at most 2**-19 elsewhere. Together 2**-15.3.
- The logit below the best, times the reciprocal temperature: three roundings, and one more in the sum with
  the noise, each 2**-24 of a number not above |score| + 40: 2**-22 of it.

`_DOUBT` is twice the bound of the noise. The error in a token's score grows slower than the score falls, so
the bounds of a block's third token hold for all further ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common import choice as reference
from common import noise

EDGES = 16
"""Distances at which one pass of `narrow` sums."""
PASSES = 9
"""Of a search: after the first one less than 2**32 floats are left, and EDGES**8 is 2**32."""

_EDGES, _PASSES = tl.constexpr(EDGES), tl.constexpr(PASSES)
_FARTHEST = tl.constexpr(2**32)  # above the distance of any two floats
_ALL = tl.constexpr(2**40)  # more tokens than there are
_WEIGHTLESS = tl.constexpr(-30.0)  # exp of it is less than half of a weight's unit, 2**-42
_NO_TOKEN = tl.constexpr(-1)
_LAST_TOKEN = tl.constexpr(2**31 - 1)  # above all tokens

_GAMMA = tl.constexpr(noise.GAMMA)
_FACTOR_1, _FACTOR_2 = (tl.constexpr(factor) for factor in noise.MIX_FACTORS)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (tl.constexpr(shift) for shift in noise.MIX_SHIFTS)
_UNUSED_BITS = tl.constexpr(64 - noise.UNIFORM_BITS)
_MOST_BITS = tl.constexpr(2**noise.UNIFORM_BITS - 1)
_CELL = tl.constexpr(2.0**-noise.UNIFORM_BITS)
_WEIGHT_UNIT = tl.constexpr(reference.WEIGHT_UNIT)
_WHOLE = tl.constexpr(1.5 * 2.0**52)  # from here on a float64 has no fraction, so adding it rounds

_DOUBT = tl.constexpr(2.0**-14)  # of noise in float32; the docstring above has the proof
_SHARE_OF_DOUBT = tl.constexpr(2.0**-22)  # of a score
_MOST_NOISE = tl.constexpr(40.0)
_LEAST_ROUGH = tl.constexpr(-1e30)  # no finite score becomes -inf in float32
_LEAST_HEAT, _MOST_HEAT = tl.constexpr(2.0**-10), tl.constexpr(2.0**10)
_MOST_LOGIT = tl.constexpr(1e30)  # differences of such logits are finite in float32

_TABLES = ["settings", "keys", "edge_values", "edge_counts"]
"""Arguments that lie anywhere, as in those of attention."""


@triton.jit
def _best_of(scores, tokens):
    """Return the best score and its token, the lowest of equals."""
    best = tl.max(scores, 0)
    return best, tl.min(tl.where(scores == best, tokens, _LAST_TOKEN), 0)


@triton.jit
def find_best(logits, logits_row, block_best, block_token, block_second, num_tokens, BLOCK: tl.constexpr):
    """Find the best and second logit of each block, grid (blocks, rows); the best is nan if any logit is."""
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    exists = tokens < num_tokens
    values = tl.load(logits + row.to(tl.int64) * logits_row + tokens, mask=exists, other=float("-inf"))
    broken = tl.max((values != values).to(tl.int32), 0)
    best, token = _best_of(values, tokens)
    second = tl.max(tl.where(tokens == token, float("-inf"), values), 0)
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
def _is_broken(best):
    return (best != best) | (tl.abs(best) == float("inf"))


@triton.jit
def _scaled(values, best, temperature):
    """Return logits below the best, over the temperature, in float64."""
    return (values.to(tl.float64) - best.to(tl.float64)) / temperature


@triton.jit
def _weights(scaled):
    """Return `common.choice`'s integer weights, to the nearest integer, of two to the even one."""
    return ((tl.exp(scaled) * _WEIGHT_UNIT + _WHOLE) - _WHOLE).to(tl.int64)


@triton.jit
def _place(values):
    """Return integers in the order of float32 values, one for each number; both zeros are 0."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, (bits ^ 0x7FFFFFFF) + 1, bits).to(tl.int64)


@triton.jit
def _logit_at(best, distance):
    """Return the float32 at a distance below the best one."""
    place = (_place(best) - distance).to(tl.int32)
    return tl.where(place < 0, (place - 1) ^ 0x7FFFFFFF, place).to(tl.float32, bitcast=True)


# A search. Its state is four integers: `low` and `high`, between which the distance of the last token lies
# that is kept (low <= it < high); `below`, the sum of what is nearer than `low`; and `goal`, which the sum
# shall reach. In the first state of top-p's, `goal` is the weight that top-k keeps at its own edge.


@triton.jit
def _searched(states, sums, at, first, top_p, WEIGHTS: tl.constexpr):
    """Return the state after the pass that began with the state number `at` (`first`: the first pass)."""
    low, high = tl.load(states + 4 * at), tl.load(states + 4 * at + 1)
    below, goal = tl.load(states + 4 * at + 2), tl.load(states + 4 * at + 3)
    number = tl.arange(0, _EDGES)
    nearer = tl.load(sums + at * _EDGES + number)
    step = (high - low + _EDGES - 1) // _EDGES
    growing = tl.where(number == _EDGES - 1, high - 1, _power_of_4(number))
    edges = tl.where(first, growing, low + (number + 1) * step)
    if WEIGHTS:
        total = tl.sum(tl.where(number == _EDGES - 1, nearer, 0), 0) + goal
        wanted = tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)
        goal = tl.where(first, tl.minimum(total, wanted), goal)
    reached = (nearer >= goal) | (high - low == 1)
    below = tl.maximum(below, tl.max(tl.where(reached, below, nearer), 0))
    next_low = tl.maximum(low, tl.max(tl.where(reached, low, edges), 0))
    found_end = reached & (edges > next_low)
    return next_low, tl.minimum(high, tl.min(tl.where(found_end, edges, high), 0)), below, goal


@triton.jit
def _power_of_4(number):
    return tl.full(number.shape, 1, tl.int64) << (2 * number).to(tl.int64)


@triton.jit(do_not_specialize=["turn"], do_not_specialize_on_alignment=_TABLES)
def narrow(
    logits,
    logits_row,
    settings,  # float64 [4, R]: temperature, top-k, top-p, logarithm of min-p
    block_best,
    states,  # int64 [2, PASSES, R, 4] of top-k's search and of top-p's
    sums,  # int64 [2, PASSES, R, EDGES], 0 before
    num_tokens,
    blocks,
    turn,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    SHARE: tl.constexpr,  # blocks of a program
    WEIGHTS: tl.constexpr,  # top-p's search, by weights; else top-k's, by tokens
    FIRST: tl.constexpr,  # turn is 0
):
    """Sum what lies nearer than each of some distances; pass number `turn`, grid (blocks / SHARE, rows)."""
    row, num_rows = tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(settings + row)
    top_k = tl.minimum(tl.load(settings + num_rows + row), num_tokens).to(tl.int64)
    top_p = tl.load(settings + 2 * num_rows + row)
    wanted = top_k > 0
    if WEIGHTS:
        wanted = top_p < 1.0
    if not wanted:
        return
    best = _row_best(block_best, row, blocks, BLOCKS)
    if _is_broken(best):
        return
    at = turn * num_rows + row
    if WEIGHTS:
        at += _PASSES * num_rows
    if FIRST:
        low, high, below, goal = _begun(states, sums, row, best, temperature, top_k, top_p, WEIGHTS)
    else:
        low, high, below, goal = _searched(states, sums, at - num_rows, turn == 1, top_p, WEIGHTS)
    if tl.program_id(0) == 0:
        tl.store(states + 4 * at, low)
        tl.store(states + 4 * at + 1, high)
        tl.store(states + 4 * at + 2, below)
        tl.store(states + 4 * at + 3, goal)
    if (high - low == 1) & (turn > 0):
        return
    for block in range(tl.program_id(0) * SHARE, tl.minimum((tl.program_id(0) + 1) * SHARE, blocks)):
        nearest = tl.load(block_best + row * blocks + block)
        read = _place(best) - _place(nearest) < high
        if WEIGHTS:
            read = read & (_scaled(nearest, best, temperature) > _WEIGHTLESS)
        if read:
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            exists = tokens < num_tokens
            at_logits = logits + row.to(tl.int64) * logits_row + tokens
            values = tl.load(at_logits, mask=exists, other=float("-inf"))
            counted = exists.to(tl.int64)
            if WEIGHTS:
                counted = tl.where(exists, _weights(_scaled(values, best, temperature)), 0)
            _add_nearer(_place(best) - _place(values), counted, low, high, sums + at * _EDGES, FIRST)


@triton.jit
def _begun(states, sums, row, best, temperature, top_k, top_p, WEIGHTS: tl.constexpr):
    """Return the first state of a search. That of top-p looks no further than top-k's, if there is one."""
    high, goal = tl.full([], _FARTHEST, tl.int64), top_k
    if WEIGHTS:
        goal = tl.full([], 0, tl.int64)
        if top_k > 0:
            num_rows = tl.num_programs(1)
            at = (_PASSES - 1) * num_rows + row
            last, _, nearer, _ = _searched(states, sums, at, False, top_p, False)
            goal = (top_k - nearer) * _weights(_scaled(_logit_at(best, last), best, temperature))
            high = last + 1
    return tl.full([], 0, tl.int64), high, tl.full([], 0, tl.int64), goal


@triton.jit
def _add_nearer(distances, counted, low, high, sums, FIRST: tl.constexpr):
    """Add what is nearer than each edge; the edges are those of `_searched`."""
    step = (high - low + _EDGES - 1) // _EDGES
    for number in tl.static_range(_EDGES):
        edge = low + (number + 1) * step
        if FIRST:
            edge = high - 1
            if number < _EDGES - 1:
                edge = tl.full([], 1 << (2 * number), tl.int64)
        total = tl.sum(tl.where(distances < edge, counted, 0), 0)
        tl.atomic_add(sums + number, total, sem="relaxed")


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def find_edge(
    logits,
    logits_row,
    settings,
    block_best,
    states,
    sums,
    edge_values,  # float64 [R] score without noise of the last token kept; -inf keeps all
    edge_counts,  # int64 [R] how many of equal score are kept, beside those of `ahead`
    equal,  # int32 [R, blocks] of equal score
    ahead,  # int32 [R, blocks] those of them whose logits are nearer, that only rounding makes equal
    num_tokens,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    SHARE: tl.constexpr,
):
    """Find the score of the last token that the filters keep, grid (blocks / SHARE, rows)."""
    row, num_rows = tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(settings + row)
    top_k, top_p = tl.load(settings + num_rows + row), tl.load(settings + 2 * num_rows + row)
    least = tl.load(settings + 3 * num_rows + row)
    best = _row_best(block_best, row, blocks, BLOCKS)
    value, count = tl.full([], float("-inf"), tl.float64), tl.full([], _ALL, tl.int64)
    distance = tl.full([], 0, tl.int64)
    if not _is_broken(best):
        last = (_PASSES - 1) * num_rows + row
        if top_p < 1.0:
            distance, _, below, goal = _searched(states, sums, _PASSES * num_rows + last, False, top_p, True)
            value = _scaled(_logit_at(best, distance), best, temperature)
            weight = tl.maximum(_weights(value), 1)
            count = (goal - below + weight - 1) // weight
        elif top_k > 0.0:
            distance, _, below, goal = _searched(states, sums, last, False, top_p, False)
            value = _scaled(_logit_at(best, distance), best, temperature)
            count = goal - below
    if least > value:
        value, count = least, tl.full([], _ALL, tl.int64)
    if tl.program_id(0) == 0:
        tl.store(edge_values + row, value)
        tl.store(edge_counts + row, count)
    if (value == float("-inf")) | (count == _ALL):
        return
    for block in range(tl.program_id(0) * SHARE, tl.minimum((tl.program_id(0) + 1) * SHARE, blocks)):
        num_equal, num_ahead = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
        if _scaled(tl.load(block_best + row * blocks + block), best, temperature) >= value:
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            at_logits = logits + row.to(tl.int64) * logits_row + tokens
            values = tl.load(at_logits, mask=tokens < num_tokens, other=float("-inf"))
            same = _scaled(values, best, temperature) == value
            nearer = same & (_place(best) - _place(values) < distance)
            num_equal, num_ahead = tl.sum(same.to(tl.int32), 0), tl.sum(nearer.to(tl.int32), 0)
        tl.store(equal + row * blocks + block, num_equal)
        tl.store(ahead + row * blocks + block, num_ahead)


@triton.jit
def _kept(
    values, exists, best, temperature, edge, edge_counts, equal, ahead, row, block, blocks,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return which tokens of a block the filters keep, where they keep some above the score `edge`."""
    scores = _scaled(values, best, temperature)
    count = tl.load(edge_counts + row)
    kept = scores >= edge
    if count < _ALL:
        number, places = tl.arange(0, BLOCKS), row * blocks + tl.arange(0, BLOCKS)
        count += tl.sum(tl.load(ahead + places, mask=number < blocks, other=0), 0)
        count -= tl.sum(tl.load(equal + places, mask=number < block, other=0), 0)
        same = scores == edge
        kept = (scores > edge) | (same & (tl.cumsum(same.to(tl.int32), 0) <= count))
    return kept & exists


@triton.jit
def _noise_bits(key, tokens):
    """Return the upper 52 bits of `common.noise.bits_under`, int64."""
    state = key + (tokens + 1).to(tl.uint64) * _GAMMA
    state = (state ^ (state >> _SHIFT_1)) * _FACTOR_1
    state = (state ^ (state >> _SHIFT_2)) * _FACTOR_2
    state = state ^ (state >> _SHIFT_3)
    return (state >> _UNUSED_BITS).to(tl.int64)


@triton.jit
def _scores(values, best, temperature, key, tokens):
    """Return scores with `common.noise.gumbel` under an unsigned key, float64."""
    uniform = (_noise_bits(key, tokens).to(tl.float64) + 0.5) * _CELL
    return _scaled(values, best, temperature) - tl.log(-tl.log(uniform))


@triton.jit
def _rough_noise(bits):
    """Return the noise of 52 bits in float32; its error is below `_DOUBT`."""
    uniform = (bits.to(tl.float32) + 0.5) * _CELL
    rest = ((bits ^ _MOST_BITS).to(tl.float32) + 0.5) * _CELL  # 1 - uniform, of all bits
    series = rest * (1.0 + rest * (0.5 + rest * (1.0 / 3.0 + rest * (0.25 + rest * 0.2))))
    return -tl.log(tl.where(rest < 0.03125, series, -tl.log(uniform)))


@triton.jit
def _rough_scores(values, best, temperature, key, tokens):
    """Return `_scores` in float32; their error is below `_doubt` of them."""
    heat = (1.0 / temperature).to(tl.float32)
    noise = _rough_noise(_noise_bits(key, tokens))
    return tl.maximum((values - best) * heat, _LEAST_ROUGH) + noise


@triton.jit
def _doubt(score):
    return _DOUBT + _SHARE_OF_DOUBT * (tl.abs(score) + _MOST_NOISE)


@triton.jit
def _two_of(scores, tokens):
    """Return the tokens of the best two scores, `_NO_TOKEN` for -inf; the second and the third score."""
    first, token = _best_of(scores, tokens)
    scores = tl.where(tokens == token, float("-inf"), scores)
    second, next_token = _best_of(scores, tokens)
    third = tl.max(tl.where(tokens == next_token, float("-inf"), scores), 0)
    token = tl.where(first > float("-inf"), token, _NO_TOKEN)
    return token, tl.where(second > float("-inf"), next_token, _NO_TOKEN), second, third


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def find_winner(
    logits,
    logits_row,
    settings,  # a temperature of 0 for greedy rows, which have no winner here
    keys,  # int64 [R] of `noise.noise_keys`
    edge_values,  # of `find_edge`, with the next three, if FILTERED
    edge_counts,
    equal,
    ahead,
    block_best,
    winner,  # int32 [R, blocks] token, or -1
    runner_up,
    num_tokens,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """Find the tokens with each block's best two scores, grid (blocks, rows)."""
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    temperature = tl.load(settings + row)
    if temperature == 0.0:
        return
    place = row * blocks + block
    best = _row_best(block_best, row, blocks, BLOCKS)
    edge = tl.full([], float("-inf"), tl.float64)
    if FILTERED:
        edge = tl.load(edge_values + row)
    nothing = _is_broken(best)
    if not nothing:
        nearest = tl.load(block_best + place)
        nothing = (_scaled(nearest, best, temperature) < edge) | (nearest == float("-inf"))
    if nothing:
        tl.store(winner + place, _NO_TOKEN)
        tl.store(runner_up + place, _NO_TOKEN)
        return
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    exists = tokens < num_tokens
    values = tl.load(logits + row.to(tl.int64) * logits_row + tokens, mask=exists, other=float("-inf"))
    kept = values > float("-inf")
    if FILTERED:  # noqa: SIM102 - known at compile time, unlike the next one
        if edge > float("-inf"):
            kept = _kept(
                values, kept, best, temperature, edge, edge_counts, equal, ahead, row, block, blocks, BLOCKS
            )  # fmt: skip
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    rough = tl.where(kept, _rough_scores(values, best, temperature, key, tokens), float("-inf"))
    first, second, score, next_score = _two_of(rough, tokens)
    finite = tl.maximum(next_score, 100.0 * _LEAST_ROUGH)
    sure = (next_score == float("-inf")) | (finite + _doubt(finite) < score - _doubt(score))
    sure = sure & (temperature >= _LEAST_HEAT) & (temperature <= _MOST_HEAT) & (tl.abs(best) < _MOST_LOGIT)
    if not sure:
        exact = tl.where(kept, _scores(values, best, temperature, key, tokens), float("-inf"))
        first, second, _, _ = _two_of(exact, tokens)
    tl.store(winner + place, first)
    tl.store(runner_up + place, second)


@triton.jit
def _scores_of(logits, logits_row, row, tokens, best, temperature, key):
    """Return the scores of tokens, float64; -inf for `_NO_TOKEN`."""
    exists = tokens != _NO_TOKEN
    values = tl.load(logits + row.to(tl.int64) * logits_row + tokens, mask=exists, other=float("-inf"))
    return tl.where(exists, _scores(values, best, temperature, key, tokens), float("-inf"))


@triton.jit(do_not_specialize_on_alignment=_TABLES)
def merge(
    logits,
    logits_row,
    settings,
    keys,
    block_best,
    block_token,
    block_second,
    winner,
    runner_up,
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
    temperature = tl.load(settings + row)
    if temperature == 0.0:
        bests = tl.load(block_best + place, mask=exists, other=float("-inf")).to(tl.float64)
        tokens = tl.load(block_token + place, mask=exists, other=_LAST_TOKEN)
        others = tl.load(block_second + place, mask=exists, other=float("-inf")).to(tl.float64)
        other_tokens = tl.full([BLOCKS], _LAST_TOKEN, tl.int32)  # not the lowest: a block's best is that
    else:
        key = tl.load(keys + row).to(tl.uint64, bitcast=True)
        tokens = tl.load(winner + place, mask=exists, other=_NO_TOKEN)
        other_tokens = tl.load(runner_up + place, mask=exists, other=_NO_TOKEN)
        bests = _scores_of(logits, logits_row, row, tokens, raw_best, temperature, key)
        others = _scores_of(logits, logits_row, row, other_tokens, raw_best, temperature, key)
    best = tl.maximum(tl.max(bests, 0), tl.max(others, 0))
    token = tl.minimum(
        tl.min(tl.where(bests == best, tokens, _LAST_TOKEN), 0),
        tl.min(tl.where(others == best, other_tokens, _LAST_TOKEN), 0),
    )
    second = tl.maximum(
        tl.max(tl.where(tokens == token, float("-inf"), bests), 0),
        tl.max(tl.where(other_tokens == token, float("-inf"), others), 0),
    )
    margin = (best - second).to(tl.float32)
    tl.store(choices + row, token)
    tl.store(margins + row, tl.where(_is_broken(raw_best), float("nan"), margin))
