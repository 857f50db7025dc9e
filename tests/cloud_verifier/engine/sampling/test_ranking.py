"""Candidates of a draft come in the order of the reference, for all rows of a level at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cloud_verifier.engine.sampling.choice import ChoiceRow
from cloud_verifier.engine.sampling.ranking import FRONT, rank_rows
from common.choice import History, rank
from common.sampling import SamplingParams

pytestmark = pytest.mark.torch

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.3, seed=2, top_k=3),
    SamplingParams(temperature=0.8, seed=3, top_p=0.6),
    SamplingParams(temperature=0.8, seed=4, min_p=0.2, top_p=0.95, top_k=20),
    SamplingParams(temperature=0.5, seed=2**64 - 1, logit_bias=((4, 3.0), (90, -50.0))),
)


@pytest.mark.parametrize("count", [1, 8])
def test_rows_are_ranked_as_the_reference_ranks_each(count: int) -> None:
    logits = 3 * torch.randn((60, 97), generator=torch.Generator().manual_seed(0))
    rows = [ChoiceRow(SAMPLINGS[row % len(SAMPLINGS)], 10 + row) for row in range(60)]
    for own, row, (tokens, scores) in zip(logits.numpy(), rows, rank_rows(logits, rows, count), strict=True):
        expected = rank(own, row.params, row.position, count)
        assert list(tokens) == expected.tokens.tolist()
        np.testing.assert_allclose(scores, expected.scores, atol=1e-6)


def test_penalties_follow_the_path() -> None:
    sampling = SamplingParams(temperature=0.8, seed=1, repetition_penalty=1.5, frequency_penalty=0.7)
    prompt, text, path = (np.array(each, np.int32) for each in ([3, 4, 5], [6, 6], [7, 3]))
    history = History.of(sampling, prompt, text)
    logits = 3 * torch.randn((1, 97), generator=torch.Generator().manual_seed(0))
    row = ChoiceRow(sampling, 6, generated=np.append(np.zeros(2, np.int32), path), history=history)
    ((tokens, scores),) = rank_rows(logits, [row], 8)
    expected = rank(logits[0].numpy(), sampling, 6, 8, prompt, np.concatenate((text, path)))
    assert list(tokens) == expected.tokens.tolist()
    np.testing.assert_allclose(scores, expected.scores, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.5])
def test_noise_lifts_unlikely_tokens_of_a_large_vocabulary_too(temperature: float) -> None:
    logits = 3 * torch.randn((24, 20 * FRONT), generator=torch.Generator().manual_seed(0))
    rows = [ChoiceRow(SamplingParams(temperature=temperature, seed=7), position) for position in range(24)]
    beyond = 0
    for own, row, (tokens, scores) in zip(logits.numpy(), rows, rank_rows(logits, rows, 8), strict=True):
        expected = rank(own, row.params, row.position, 8)
        assert list(tokens) == expected.tokens.tolist()
        np.testing.assert_allclose(scores, expected.scores, atol=1e-6)
        beyond += len(set(tokens) - set(own.argsort()[-FRONT:].tolist()))
    assert (beyond > 20) == (temperature > 1.0)


def test_of_filtered_rows_only_the_likeliest_tokens_are_ranked() -> None:
    logits = torch.randn((8, 20 * FRONT), generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=1.5, seed=7, top_k=10 * FRONT)
    rows = [ChoiceRow(params, position) for position in range(8)]
    for own, row, (tokens, _) in zip(logits.numpy(), rows, rank_rows(logits, rows, 8), strict=True):
        likeliest = set(own.argsort()[-FRONT:].tolist())
        order = rank(own, row.params, row.position, 10 * FRONT).tokens.tolist()
        assert list(tokens) == [token for token in order if token in likeliest][:8]


def test_broken_logits_give_no_candidates() -> None:
    logits = torch.full((1, 97), torch.nan)
    assert rank_rows(logits, [ChoiceRow(SamplingParams(), 0)], 8) == [((), ())]
