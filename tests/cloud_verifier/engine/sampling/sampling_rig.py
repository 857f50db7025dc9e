"""Rows of every kind of sampling, and logits for them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.engine.sampling.host_choice import ChoiceRow
from common.sampling import SamplingParams

PROMPT = np.array([1, 2, 2, 5], np.int32)
GENERATED = np.array([5, 6, 6, 6, 0], np.int32)

MIXED = [
    SamplingParams(), SamplingParams(repetition_penalty=1.4),
    SamplingParams(logit_bias=((3, 4.0), (0, -9.0), (3, 1.0))), SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.4, top_k=3), SamplingParams(temperature=1.0, top_k=1000),
    SamplingParams(temperature=1.0, top_p=0.9), SamplingParams(temperature=2.0, top_p=0.999),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.7, min_p=0.01),
    SamplingParams(temperature=1.0, top_k=200, top_p=0.9999),
    SamplingParams(temperature=0.9, top_p=0.8, presence_penalty=0.6, frequency_penalty=0.2),
    SamplingParams(temperature=1.0, repetition_penalty=0.8, logit_bias=((1, 2.0),)),
    SamplingParams(temperature=5e-324, min_p=0.5),
]  # fmt: skip


def rows_of(params: Sequence[SamplingParams]) -> list[ChoiceRow]:
    """One row of each, with a seed and a position of its own."""
    rows = []
    for index, one in enumerate(params):
        history = (PROMPT, GENERATED) if one.has_penalties else (None, None)
        rows.append(ChoiceRow(replace(one, seed=2**63 + 7 * index), 100 * index, *history))
    return rows


def random_logits(rows: int, size: int, spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(rows * size)
    return torch.randn(rows, size, generator=generator) * spread


def masked(rows: Sequence[ChoiceRow], size: int) -> list[ChoiceRow]:
    """Three rows of four under a grammar: one token in two, few, or a single one."""
    chance = np.random.default_rng(size)
    shares = (None, 0.5, 2.0 / size, 0.0)
    under = []
    for index, row in enumerate(rows):
        if (share := shares[index % len(shares)]) is None:
            under.append(row)
            continue
        allowed = chance.random(size) < share
        allowed[index % size] = True
        params = replace(row.params, grammar="told by the mask")
        under.append(replace(row, params=params, allowed=allowed, prompt=PROMPT, generated=GENERATED))
    return under
