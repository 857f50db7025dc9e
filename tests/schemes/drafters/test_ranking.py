"""Rows on their device: the noise has numpy's bits, and candidates come in the order of the reference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cloud_verifier.engine.sampling.host_choice import ChoiceRow
from common import noise
from common.choice import History
from common.errors import LocalError
from common.sampling import SamplingParams
from schemes.drafters.ranking import gumbel, noise_bits, noise_keys, rank_on_device, rank_rows
from tests import wording
from tests.support.law import rank

pytestmark = pytest.mark.torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_vocabulary_of_noise_is_equal_but_for_the_logarithms(device: str) -> None:
    """Bits exactly; noise to a few units in the last place of the logarithm's argument."""
    seeds, positions, size = [0, 2**64 - 1, 5], [0, 2**31 - 1, 77], 2**17
    keys = noise_keys(seeds, positions, torch.device(device)).unsqueeze(1)
    tokens = torch.arange(size, device=device)
    bits, values = noise_bits(keys, tokens).cpu().numpy(), gumbel(keys, tokens).cpu().numpy()
    for index, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        expected = noise.bits_under(np.uint64(noise.noise_key(seed, position)), np.arange(size))
        np.testing.assert_array_equal(bits[index].view(np.uint64), expected)
        np.testing.assert_allclose(values[index], noise.gumbel_of_bits(expected), rtol=1e-13, atol=1e-14)


SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.3, seed=2, top_k=3),
    SamplingParams(temperature=0.8, seed=3, top_p=0.6),
    SamplingParams(temperature=0.8, seed=4, min_p=0.2, top_p=0.95, top_k=20),
    SamplingParams(temperature=0.5, seed=2**64 - 1, logit_bias=((4, 3.0), (90, -50.0))),
)


@pytest.mark.parametrize("rank_all", [rank_rows, rank_on_device])
@pytest.mark.parametrize("count", [1, 8])
def test_rows_are_ranked_as_the_reference_ranks_each(count: int, rank_all: Callable[..., Any]) -> None:
    logits = 3 * torch.randn((60, 97), generator=torch.Generator().manual_seed(0))
    rows = [ChoiceRow(SAMPLINGS[row % len(SAMPLINGS)], 10 + row) for row in range(60)]
    for own, row, (tokens, scores) in zip(logits.numpy(), rows, rank_all(logits, rows, count), strict=True):
        expected = rank(own, row.params, row.position, count)
        assert list(tokens) == expected.tokens.tolist()
        np.testing.assert_allclose(scores, expected.scores, atol=1e-6)


@pytest.mark.parametrize("rank_all", [rank_rows, rank_on_device])
def test_penalties_follow_the_path(rank_all: Callable[..., Any]) -> None:
    sampling = SamplingParams(temperature=0.8, seed=1, repetition_penalty=1.5, frequency_penalty=0.7)
    prompt, text, path = (np.array(each, np.int32) for each in ([3, 4, 5], [6, 6], [7, 3]))
    history = History.of(sampling, prompt, text)
    logits = 3 * torch.randn((1, 97), generator=torch.Generator().manual_seed(0))
    row = ChoiceRow(sampling, 6, generated=np.append(np.zeros(2, np.int32), path), history=history)
    ((tokens, scores),) = rank_all(logits, [row], 8)
    expected = rank(logits[0].numpy(), sampling, 6, 8, prompt, np.concatenate((text, path)))
    assert list(tokens) == expected.tokens.tolist()
    np.testing.assert_allclose(scores, expected.scores, atol=1e-6)


@pytest.mark.parametrize("rank_all", [rank_rows, rank_on_device])
def test_broken_logits_are_errors(rank_all: Callable[..., Any]) -> None:
    with wording.raises(LocalError):
        rank_all(torch.full((1, 97), torch.nan), [ChoiceRow(SamplingParams(), 0)], 8)
