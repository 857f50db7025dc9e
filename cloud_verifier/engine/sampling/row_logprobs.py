"""Computes log-probabilities for sessions that ask: log-softmax of the raw logits, on the logits'
device.

Raw: as the model returns them, before grammar, bias, penalties and temperature. Other sessions pay nothing:
their rows are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import FloatArray, IntArray, RowLogprobs, StepItem
from cloud_verifier.engine.packing import IndexArray
from cloud_verifier.engine.sampling.host_choice import StepLogprobs, asked_logprobs, negative


def row_logprobs(items: Sequence[StepItem], logits: Tensor, choices: IntArray) -> StepLogprobs:
    """Return the log-probabilities of items that ask, from logits float32 [O, V] (or more rows) and the
    choices [O]; empty if none asks."""

    def of_rows(rows: IndexArray, most: int) -> RowLogprobs:
        return _of_rows(logits.index_select(0, torch.from_numpy(rows).to(logits.device)), choices[rows], most)

    return asked_logprobs(items, of_rows)


def _of_rows(logits: Tensor, choices: IntArray, most: int) -> RowLogprobs:
    """Return the log-probabilities of the choices [R] under logits float32 [R, V], and those of the `most`
    likeliest tokens of each row, V at most."""
    totals = torch.logsumexp(logits, dim=1)
    wanted = torch.from_numpy(choices.astype(np.int64)).to(logits.device)
    own = logits.gather(1, wanted.unsqueeze(1)).squeeze(1) - totals
    tokens, values = _best(logits, min(most, logits.shape[1]))
    tops = values - totals.cpu().numpy()[:, None]
    return RowLogprobs(negative(own.cpu().numpy()), tokens, negative(tops))


def _best(logits: Tensor, count: int) -> tuple[IntArray, FloatArray]:
    """Ids [R, count] and logits of the greatest, lowest id first among equals, which `topk` does not promise:
    so all that are as great as its last one are looked at."""
    num_rows = logits.shape[0]
    if not count or not num_rows:
        return np.zeros((num_rows, count), np.int32), np.zeros((num_rows, count), np.float32)
    least = logits.topk(count, dim=1).values[:, -1:]
    rows, ids = (logits >= least).nonzero(as_tuple=True)
    values, numbers = logits[rows, ids].cpu().numpy(), ids.cpu().numpy().astype(np.int32)
    ends = np.searchsorted(rows.cpu().numpy(), np.arange(num_rows + 1))
    orders = [
        start + np.argsort(-values[start:end], kind="stable")[:count]
        for start, end in pairwise(ends.tolist())
    ]
    return np.stack([numbers[order] for order in orders]), np.stack([values[order] for order in orders])


# Below which margin a choice could be another one after other rounding.

NEAR_TIE = {torch.float32: 1e-4, torch.float16: 0.025, torch.bfloat16: 0.2}
"""In logits, by what the model computes in.

Measured on the demo target (10 layers, logits of spread 2.6): 400 rows of text, decoded alone against packed
by 7, 64 and 400 in company, changed the gap of the two best logits by 2.2e-5 at most in float32 and by 0.09
in bfloat16; the choice changed at margins up to 0.02. These are two to five times that. float16 has three
more bits than bfloat16.
"""


def near_tie(dtype: torch.dtype) -> float:
    """Return the margin of a near tie for a model of `dtype`; an unknown dtype counts as the coarsest."""
    return NEAR_TIE.get(dtype, NEAR_TIE[torch.bfloat16])
