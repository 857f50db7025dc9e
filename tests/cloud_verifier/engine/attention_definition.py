"""The definition of attention, session by session and row by row, to which backends are held."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepItem
from cloud_verifier.engine.attention.backend import AttentionTerms, LayerKV
from cloud_verifier.engine.packing import PackedStep, path_rows


def attention_by_definition(step: PackedStep, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
    """Compute each row over its prefix, its ancestors and itself, in float32, session by session.

    `query` is [1, Hq, T, Dk]; `kv` holds the step's own rows, too. Returns float32 [T, Hq, Dv].
    """
    ends = step.starts[1:]
    queries = [query[0, :, start:end].float() for start, end in zip(step.starts, ends, strict=False)]
    return torch.cat(
        [_of_item(item, part, kv, terms) for item, part in zip(step.items, queries, strict=True)]
    )


def _of_item(item: StepItem, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
    """query float32 [Hq, R, Dk]; returns float32 [R, Hq, Dv]."""
    share = query.shape[0] // kv.keys.shape[1]
    slots = torch.from_numpy(np.concatenate((item.prefix_slots, item.slots)).astype(np.int64)).to(
        query.device
    )
    keys = kv.keys[slots].float().repeat_interleave(share, dim=1)  # [L, Hq, Dk]
    values = kv.values[slots].float().repeat_interleave(share, dim=1)
    scores = torch.einsum("hrd,lhd->hrl", query, keys) * terms.scaling
    if terms.softcap is not None:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    visible = torch.from_numpy(_visible(item, terms.window)).to(query.device)
    scores = scores.masked_fill(~visible, float("-inf"))
    if terms.sinks is not None:
        sinks = terms.sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(slots)]
    return torch.einsum("hrl,lhd->rhd", weights, values)


def _visible(item: StepItem, window: int | None) -> NDArray[np.bool_]:
    """Return which of prefix and rows each row sees: bool [R, C + R]."""
    before = len(item.prefix_slots)
    positions = np.concatenate((np.arange(before, dtype=np.int32), item.positions))
    visible = np.zeros((len(item.tokens), len(positions)), dtype=np.bool_)
    visible[:, :before] = True
    for row in range(len(visible)):
        visible[row, [before + above for above in path_rows(item.parents, row)]] = True
    if window is not None:
        visible &= positions > item.positions[:, None] - window
    return visible
