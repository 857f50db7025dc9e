"""Candidates of a draft come in the order of the reference, for all rows of a level at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cloud_verifier.engine.sampling.host import ChoiceRow
from cloud_verifier.engine.sampling.ranking import rank_dense, rank_rows
from common.choice import History, rank
from common.errors import LocalError
from common.sampling import SamplingParams
from tests import wording

pytestmark = pytest.mark.torch

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.3, seed=2, top_k=3),
    SamplingParams(temperature=0.8, seed=3, top_p=0.6),
    SamplingParams(temperature=0.8, seed=4, min_p=0.2, top_p=0.95, top_k=20),
    SamplingParams(temperature=0.5, seed=2**64 - 1, logit_bias=((4, 3.0), (90, -50.0))),
)


@pytest.mark.parametrize("rank_all", [rank_rows, rank_dense])
@pytest.mark.parametrize("count", [1, 8])
def test_rows_are_ranked_as_the_reference_ranks_each(count: int, rank_all: Callable[..., Any]) -> None:
    logits = 3 * torch.randn((60, 97), generator=torch.Generator().manual_seed(0))
    rows = [ChoiceRow(SAMPLINGS[row % len(SAMPLINGS)], 10 + row) for row in range(60)]
    for own, row, (tokens, scores) in zip(logits.numpy(), rows, rank_all(logits, rows, count), strict=True):
        expected = rank(own, row.params, row.position, count)
        assert list(tokens) == expected.tokens.tolist()
        np.testing.assert_allclose(scores, expected.scores, atol=1e-6)


@pytest.mark.parametrize("rank_all", [rank_rows, rank_dense])
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


def test_broken_logits_are_told() -> None:
    with wording.raises(LocalError):
        rank_rows(torch.full((1, 97), torch.nan), [ChoiceRow(SamplingParams(), 0)], 8)
