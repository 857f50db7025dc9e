"""torch's noise has numpy's bits, on every device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.engine.noise import gumbel, noise_bits, noise_keys
from common import noise as reference

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

ROWS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=4)
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)


@given(ROWS, TOKENS)
def test_bits_are_equal(rows: list[tuple[int, int]], tokens: list[int]) -> None:
    keys = noise_keys([seed for seed, _ in rows], [position for _, position in rows], CPU)
    bits = noise_bits(keys.unsqueeze(1), torch.tensor(tokens))
    assert bits.shape == (len(rows), len(tokens))
    for row, (seed, position) in zip(bits.numpy().view(np.uint64), rows, strict=True):
        assert row.tolist() == reference.noise_bits(seed, position, np.array(tokens)).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_a_vocabulary_of_noise_is_equal_but_for_the_logarithms(device: str) -> None:
    """Bits exactly; noise to a few units in the last place of the logarithm's argument."""
    seeds, positions, size = [0, 2**64 - 1, 5], [0, 2**31 - 1, 77], 2**17
    keys = noise_keys(seeds, positions, torch.device(device)).unsqueeze(1)
    tokens = torch.arange(size, device=device)
    bits, values = noise_bits(keys, tokens).cpu().numpy(), gumbel(keys, tokens).cpu().numpy()
    for index, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        expected = reference.noise_bits(seed, position, np.arange(size))
        np.testing.assert_array_equal(bits[index].view(np.uint64), expected)
        np.testing.assert_allclose(values[index], reference.gumbel_of_bits(expected), rtol=1e-13, atol=1e-14)


def test_the_arguments_are_left_alone() -> None:
    keys, tokens = noise_keys([1], [2], CPU), torch.arange(5)
    before = keys.clone()
    gumbel(keys, tokens)
    assert torch.equal(keys, before)
    assert tokens.tolist() == [0, 1, 2, 3, 4]
