"""Compute Gumbel noise as a pure function of (seed, position, token), so that two machines agree.

Both sides add g(seed, position, token) to their logits and take the best token, so the same model makes the
same choice anywhere, and a model close to it makes mostly the same (Gumbel-max coupling, Daliri et al. 2024,
arXiv 2408.07978). The noise has no state: the same arguments always give the same noise.

The 64-bit integers are SplitMix64 streams read at random places: the position-th output of the seed's stream
is a key, the token-th output of the key's stream is the noise's bits. (Steele, Lea & Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; `MIX_*` are the constants of its mix64 as Vigna's splitmix64.c
has them: David Stafford's "Mix13", a better-tuned MurmurHash3 finaliser.)
`cloud_verifier.engine.sampling.device_rows` says the same in torch, bit for bit. The two logarithms that
follow are the libraries' own, so the noise itself agrees to the last bit or two of a float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Bits = NDArray[np.uint64]
FloatArray = NDArray[np.float64]

MASK_64 = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: the step between a stream's counters
MIX_SHIFTS = (30, 27, 31)
MIX_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = MIX_SHIFTS
_FACTOR_1, _FACTOR_2 = MIX_FACTORS
# Of numpy's type once and for all: a conversion costs as much as a product of a few numbers.
_ONE, _GAMMA, _LAST_SHIFT = np.uint64(1), np.uint64(GAMMA), np.uint64(_SHIFT_3)
_MIX_STEPS = ((np.uint64(_SHIFT_1), np.uint64(_FACTOR_1)), (np.uint64(_SHIFT_2), np.uint64(_FACTOR_2)))

# Uniforms are the midpoints of 2**52 equal cells, exact in a float64, never 0 and never 1. That bounds the
# noise: -log(-log(1 - 2**-53)) = 36.7368..., -log(-log(2**-53)) = -3.6038..., both rounded outwards here.
UNIFORM_BITS = 52
NOISE_MAX = 36.74
NOISE_MIN = -3.61

_NOISE_SHIFT = np.uint64(64 - UNIFORM_BITS)

BLOCK = 2**14  # tokens at a time: temporary arrays of 128 KiB stay in the cache and in the heap


def noise_key(seed: int, position: int) -> int:
    """Return the key of one position's noise, an unsigned 64-bit integer; `seed` is taken modulo 2**64."""
    return noise_output(noise_stream(seed), position)


def noise_stream(seed: int) -> int:
    """Return the stream of a seed, for callers that read many places of it by `noise_output`."""
    return noise_output(seed, 0)


def noise_output(stream: int, position: int) -> int:
    """Return the 64 bits at one position of a stream: `_mix` of its counter, on Python's integers.

    Written out, as a simulated world asks for millions.
    """
    state = (stream + (position + 1) * GAMMA) & MASK_64
    state = ((state ^ (state >> _SHIFT_1)) * _FACTOR_1) & MASK_64
    state = ((state ^ (state >> _SHIFT_2)) * _FACTOR_2) & MASK_64
    return state ^ (state >> _SHIFT_3)


def noise_keys(seeds: Bits | int, positions: IntArray) -> Bits:
    """Return `noise_key` over arrays that broadcast together; an int seed serves all positions."""
    streams = _mix(np.add(np.asarray(seeds, np.uint64), _GAMMA))
    return _mix(np.add(streams, _counter(positions)))


def bits_under(keys: Bits | np.uint64, tokens: IntArray) -> Bits:
    """Return 64 noise bits of token ids under keys of `noise_keys`; both broadcast together."""
    return _mix(np.add(keys, _counter(tokens)))  # `+` warns if both are 0-d and wrap


def gumbel(seed: int, position: int, tokens: IntArray) -> FloatArray:
    """Return standard Gumbel noise of each token id at one position, within [NOISE_MIN, NOISE_MAX].

    `position` is the place of the token that is being chosen, counted from the prompt's first token.
    """
    return gumbel_under(noise_key(seed, position), tokens)


def gumbel_under(key: int, tokens: IntArray) -> FloatArray:
    """Return `gumbel` under a key of `noise_key`, a block at a time: twice as fast on a whole vocabulary, for
    a block stays in the cache."""
    stream = np.uint64(key)
    if tokens.size <= BLOCK:
        return gumbel_of_bits(bits_under(stream, tokens))
    flat, noise = tokens.reshape(-1), np.empty(tokens.size)
    for at in range(0, tokens.size, BLOCK):
        noise[at : at + BLOCK] = gumbel_of_bits(bits_under(stream, flat[at : at + BLOCK]))
    return noise.reshape(tokens.shape)


def gumbel_of_bits(bits: Bits) -> FloatArray:
    """Return -log(-log(u)), with u the midpoint of the cell that the upper 52 bits name."""
    noise: FloatArray = (bits >> _NOISE_SHIFT).astype(np.float64)
    noise += 0.5
    noise *= 2.0**-UNIFORM_BITS
    for _ in range(2):
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def least_bits(noise: float) -> int:
    """Return bits below which noise lies below `noise`: a bound for sieving without logarithms, never too
    high."""
    uniform = math.exp(-math.exp(-min(max(noise, NOISE_MIN), NOISE_MAX)))
    slack = 2.0**-40 * (1.0 - uniform) + 2.0**-UNIFORM_BITS * 4  # rounding of the two exponentials
    cells = int((uniform - slack) * 2.0**UNIFORM_BITS)
    return max(0, cells) << (64 - UNIFORM_BITS)


def _counter(numbers: IntArray) -> Bits:
    counter = np.array(numbers, np.uint64)  # a copy, to count up in place
    counter += _ONE
    counter *= _GAMMA
    return counter


def _mix(state: Bits) -> Bits:
    """SplitMix64's mix64 over an array, with one scratch array: fresh pages cost more than the arithmetic."""
    mixed = np.asarray(state)  # numpy makes scalars of 0-d results, and those have no `out=`
    scratch = np.empty_like(mixed)
    for shift, factor in _MIX_STEPS:
        np.right_shift(mixed, shift, out=scratch)
        np.bitwise_xor(mixed, scratch, out=mixed)
        np.multiply(mixed, factor, out=mixed)
    np.right_shift(mixed, _LAST_SHIFT, out=scratch)
    return np.bitwise_xor(mixed, scratch, out=mixed)
