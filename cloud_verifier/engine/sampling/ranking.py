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
    noise_cells,
    noise_keys,
    weights,
)
from common.choice import has_filters
from common.noise import UNIFORM_BITS, least_bits

FRONT = 128
"""Likeliest tokens of a row whose noise is computed first. Of all others only the noise's integers are
computed, and its logarithms where they could reach the best candidates."""

Candidates = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, best first, and their scores in nats, as in `Followers`."""


def rank_rows(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Return the `count` best candidates of each row of float32 logits [R, V], as `common.choice.rank` does.

    Of filtered rows only the `FRONT` likeliest tokens are candidates. Broken logits give none.
    """
    adjusted = adjusted_rows(logits, rows)
    values, tokens = adjusted.topk(min(FRONT, logits.shape[1]), dim=1)
    scaled = values.double()
    scaled -= scaled[:, :1].clone()
    scores, late = scaled, list[list[tuple[float, int]]]([[] for _ in rows])
    is_noisy = not all(row.params.greedy for row in rows)
    keys = noise_keys([row.params.seed for row in rows], [row.position + 1 for row in rows], logits.device)
    if is_noisy:
        scaled /= column([row.params.temperature or 1.0 for row in rows], scaled)
        noise = gumbel(keys.unsqueeze(1), tokens)
        noise.masked_fill_(column([row.params.greedy for row in rows], tokens).bool(), 0.0)
        noise.masked_fill_(_dropped(adjusted, scaled, tokens, rows), -torch.inf)
        scores = scaled + noise
    best, order = scores.topk(min(count, scores.shape[1]), dim=1)
    if is_noisy and values.shape[1] < logits.shape[1]:
        late = _late(adjusted, values, scaled[:, -1], best[:, -1], keys, rows)
    found = zip(tokens.gather(1, order).tolist(), best.tolist(), late, strict=True)
    return [_merged(own, own_scores, others, count) for own, own_scores, others in found]


def _late(
    adjusted: Tensor, front: Tensor, lasts: Tensor, bars: Tensor, keys: Tensor, rows: Sequence[ChoiceRow]
) -> list[list[tuple[float, int]]]:
    """Return scores and tokens beyond the front [R, FRONT] that its noise could lift above `bars` [R].

    `lasts` [R] are the front's last processed logits.
    """
    sieved = [not row.params.greedy and not has_filters(row.params) for row in rows]
    needed = (bars - lasts).tolist()
    least = [
        least_bits(noise) >> (64 - UNIFORM_BITS) if is_sieved and noise == noise else 2**UNIFORM_BITS
        for noise, is_sieved in zip(needed, sieved, strict=True)
    ]
    all_tokens = torch.arange(adjusted.shape[1], device=adjusted.device)
    able = noise_cells(keys.unsqueeze(1), all_tokens) >= column(least, keys)
    where, tokens = able.logical_and_(adjusted < front[:, -1:]).nonzero().unbind(1)
    scores = adjusted[where, tokens].double() - front[where, 0].double()
    scores /= column([row.params.temperature or 1.0 for row in rows], scores).squeeze(1)[where]
    scores += gumbel(keys[where], tokens)
    found: list[list[tuple[float, int]]] = [[] for _ in rows]
    for row, token, score in zip(where.tolist(), tokens.tolist(), scores.tolist(), strict=True):
        found[row].append((score, token))
    return found


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


def _merged(
    tokens: Sequence[int], scores: Sequence[float], late: Sequence[tuple[float, int]], count: int
) -> Candidates:
    """Return the best of a row's front and of its late tokens."""
    found = [each for each in zip(scores, tokens, strict=True) if abs(each[0]) < float("inf")]
    if late:
        found = sorted([*found, *late], key=lambda each: (-each[0], each[1]))[:count]
    return tuple(token for _, token in found), tuple(score for score, _ in found)
