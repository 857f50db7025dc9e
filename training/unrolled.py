"""Computes attention of whole texts at several levels of guessing, with gradients, to train a head.

A head meets its own outputs when it guesses below the first level, so it is trained on them (EAGLE-3: Li et
al. 2025, arXiv 2503.01840, "training-time test"). Level L runs over all rows of the texts at once. A row of
it stands for a node L - 1 levels below a tip: it sees itself, its ancestors at the levels above, and the
text up to the tip at level 1.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor
from torch.nn import functional

from cloud_verifier.engine.attention.backend import AttentionTerms

_Rows = tuple[Tensor, Tensor]
"""Keys [B, Hkv, T, Dk] and values [B, Hkv, T, Dv] of one level."""


class UnrolledAttention:
    """Stands for the KV store and the attention of a step (`StepContext`)."""

    def __init__(self) -> None:
        self._levels = defaultdict[int, list[_Rows]](list)  # by layer

    def write(self, layer: int, _slots: Tensor, key: Tensor, value: Tensor) -> list[_Rows]:
        """Keep the rows of another level of a layer."""
        self._levels[layer].append((key, value))
        return self._levels[layer]

    def forget(self, level: int) -> None:
        """Forget all levels below this one, counted from 1."""
        for levels in self._levels.values():
            del levels[level:]

    def attend(self, query: Tensor, levels: list[_Rows], terms: AttentionTerms) -> Tensor:
        """Return [B, T, Hq, Dv] of query [B, Hq, T, Dk], whose rows are of the last level."""
        (keys, values), later = levels[0], levels[1:]
        kv_heads, num_rows = keys.shape[1], query.shape[2]
        query = query.view(len(query), kv_heads, -1, *query.shape[2:])  # [B, Hkv, G, T, Dk]
        rows = torch.arange(num_rows, device=query.device)
        apart = rows[:, None] - rows[None, :]
        visible = apart >= len(later)
        if terms.window is not None:
            visible &= apart < terms.window
        text = torch.einsum("bhgtd,bhsd->bhgts", query, keys).masked_fill(~visible, -torch.inf)
        scores, shifted = [text], list[Tensor]()
        for level, (own_keys, own_values) in enumerate(later, 1):
            distance = len(later) - level
            own = torch.einsum("bhgtd,bhtd->bhgt", query, _shift(own_keys, distance))
            scores.append(own.masked_fill(rows < distance, -torch.inf).unsqueeze(-1))
            shifted.append(_shift(own_values, distance))
        weights = _softmax(torch.cat(scores, dim=-1) * terms.scaling, terms).to(values.dtype)
        result = torch.einsum("bhgts,bhsd->bhgtd", weights[..., :num_rows], values)
        for own_weights, own in zip(weights[..., num_rows:].unbind(-1), shifted, strict=True):
            result = result + own_weights.unsqueeze(-1) * own.unsqueeze(2)
        return result.flatten(1, 2).transpose(1, 2)


def _shift(rows: Tensor, distance: int) -> Tensor:
    """Give row i the numbers of row i - distance; zeros where there is none."""
    return functional.pad(rows, (0, 0, distance, 0))[:, :, : rows.shape[2]]


def _softmax(scores: Tensor, terms: AttentionTerms) -> Tensor:
    """Softmax over the last dimension of [B, Hkv, G, T, N] in float32, with a family's own terms."""
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    if terms.sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32)
    sinks = terms.sinks.view(scores.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1, dtype=torch.float32)[..., :-1]
