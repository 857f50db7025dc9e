"""The noise is a pure function, SplitMix64 with the Gumbel law, and is the same in every release."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common import noise
from common.noise import bits_under, gumbel, gumbel_of_bits, noise_key

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**31 - 1)


def plain_mix(state: int) -> int:
    """mix64 of SplitMix64 as its authors print it."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def test_a_stream_is_splitmix64() -> None:
    """Vigna's splitmix64.c seeded with 0 begins with these."""
    first = [plain_mix((n + 1) * noise.GAMMA % 2**64) for n in range(3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert bits_under(np.uint64(0), np.arange(3)).tolist() == first


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_an_output_is_read_from_its_stream(seed: int, position: int) -> None:
    assert noise.noise_output(noise.noise_stream(seed), position) == noise_key(seed, position)
    assert noise.noise_output(seed, position) == plain_mix((seed + (position + 1) * noise.GAMMA) % 2**64)


def test_the_values_never_change() -> None:
    """Edge and verifier of two releases must agree: another function is another protocol."""
    assert noise_key(0, 0) == 0xA706DD2F4D197E6F
    assert bits_under(np.uint64(noise_key(7, 3)), np.array([0, 5, 131071])).tolist() == [
        6875110694074790513,
        15029617380150509269,
        454925921289614158,
    ]


@given(SEEDS, POSITIONS, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8))
def test_all_forms_give_the_same_bits(seed: int, position: int, tokens: list[int]) -> None:
    row = bits_under(np.uint64(noise_key(seed, position)), np.array(tokens))
    spread = bits_under(noise.noise_keys(seed, np.full(len(tokens), position)), np.array(tokens))
    key = plain_mix((plain_mix((seed + noise.GAMMA) % 2**64) + (position + 1) * noise.GAMMA) % 2**64)
    assert row.tolist() == spread.tolist()
    assert row.tolist() == [plain_mix((key + (token + 1) * noise.GAMMA) % 2**64) for token in tokens]


def test_a_whole_vocabulary_is_its_tokens_one_by_one() -> None:
    tokens = np.arange(3 * noise.BLOCK + 5)
    whole = gumbel(11, 4, tokens)
    ends = np.concatenate([tokens[:3], tokens[noise.BLOCK - 1 : noise.BLOCK + 1], tokens[-3:]])
    np.testing.assert_array_equal(whole[ends], gumbel(11, 4, ends))
    np.testing.assert_array_equal(gumbel(11, 4, tokens.reshape(-1, 1))[:, 0], whole)


def test_noise_is_bounded_and_finite_at_both_ends() -> None:
    low, high = gumbel_of_bits(np.array([0, 2**64 - 1], np.uint64))
    assert noise.NOISE_MIN < low < -3.60
    assert 36.73 < high < noise.NOISE_MAX


@given(st.floats(-5.0, 40.0))
def test_the_sieve_loses_nothing_and_keeps_little_else(level: float) -> None:
    least = noise.least_bits(level)
    if least > 0:
        assert gumbel_of_bits(np.array([least - 1], np.uint64))[0] < max(level, noise.NOISE_MIN)
    expected = -math.expm1(-math.exp(-level))
    assert 1 - least / 2**64 <= expected * (1 + 1e-9) + 2.0**-48


def test_moments_are_gumbels() -> None:
    """Mean is Euler's constant, variance pi**2 / 6; four deviations of the mean of 2**18."""
    values = gumbel(2, 7, np.arange(2**18))
    assert abs(values.mean() - 0.5772156649) < 4 * math.sqrt(math.pi**2 / 6 / values.size)
    assert abs(values.var() - math.pi**2 / 6) < 0.03
