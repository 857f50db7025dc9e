"""Ranks the candidates of the verifier's own drafter under the noise that the target's choices meet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from cloud_verifier.engine.sampling.choice import (
    ChoiceRow,
    adjusted_rows,
    column,
    gumbel,
    last_of_front,
    noise_keys,
    weights,
)
from common.choice import has_filters

FRONT = 128
"""Likeliest tokens of a row that are ranked. Noise lifts one of the others to the top in <MEASURED> of rows
at temperature 0.8, and looking for it would cost more than the draft."""

Candidates = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, best first, and their scores in nats, as in `Followers`."""


def rank_rows(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Return the `count` best candidates of each row of float32 logits [R, V]: `common.choice.rank` of each
    row's `FRONT` likeliest tokens. Filtered tokens and broken logits are left out."""
    adjusted = adjusted_rows(logits, rows)
    values, tokens = adjusted.topk(min(FRONT, logits.shape[1]), dim=1)
    scores = values.double()
    scores -= scores[:, :1].clone()
    if any(not row.params.greedy for row in rows):
        scores /= column([row.params.temperature or 1.0 for row in rows], scores)
        scores += _noise(tokens, rows).masked_fill_(_dropped(adjusted, scores, tokens, rows), -torch.inf)
    best, order = scores.topk(min(count, scores.shape[1]), dim=1)
    found = zip(tokens.gather(1, order).tolist(), best.tolist(), strict=True)
    return [_finite(own, own_scores) for own, own_scores in found]


def _noise(tokens: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Return the noise of `tokens` [R, K], float64; zeros in greedy rows."""
    keys = noise_keys([row.params.seed for row in rows], [row.position + 1 for row in rows], tokens.device)
    noise = gumbel(keys.unsqueeze(1), tokens)
    if any(row.params.greedy for row in rows):
        noise[torch.tensor([row.params.greedy for row in rows], device=tokens.device)] = 0.0
    return noise


def _dropped(logits: Tensor, scaled: Tensor, tokens: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Return which of `tokens` [R, K] the filters drop."""
    dropped = torch.zeros_like(tokens, dtype=torch.bool)
    filtered = [index for index, row in enumerate(rows) if has_filters(row.params)]
    if filtered:
        part, own = scaled[filtered], tokens[filtered]
        params = [rows[index].params for index in filtered]
        whole = tokens.shape[1] == logits.shape[1]
        value, token, _ = last_of_front(
            part, own, whole, params, partial(_everything, logits, rows, filtered)
        )
        dropped[filtered] = (part < value) | ((part == value) & (own > token))
    return dropped


def _everything(logits: Tensor, rows: Sequence[ChoiceRow], filtered: Sequence[int]) -> Tensor:
    """Return the integer weight of all tokens of the filtered rows, int64 [R, 1]."""
    scaled = logits[list(filtered)].double()
    scaled -= scaled.amax(dim=1, keepdim=True)
    scaled /= column([rows[index].params.temperature for index in filtered], scaled)
    return weights(scaled).sum(dim=1, keepdim=True)


def _finite(tokens: Sequence[int], scores: Sequence[float]) -> Candidates:
    kept = [place for place, score in enumerate(scores) if abs(score) < float("inf")]
    return tuple(tokens[place] for place in kept), tuple(scores[place] for place in kept)
