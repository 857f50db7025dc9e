"""Implements the reference backend: it gathers slots and makes one padded call per group of similar sessions.

The backend runs on any device. It builds all index tensors and masks once per step and variant (sliding
window, number of query heads per KV head), not once per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloud_verifier.core.engine_protocol import StepItem
from cloud_verifier.engine.attention.ancestor_mask import ancestor_mask
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV, StepAttention
from cloud_verifier.engine.packing import IndexArray, PackedStep

PADDING_FACTOR = 1.5
"""A group may hold this many times the row-key pairs that its sessions need: padding against calls."""
PADDING_SLACK = 2048
"""Row-key pairs that cost about as much as one more call (50 µs at 8 heads of 32 on one core)."""


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """Holds the part of one item's prefix that a row can still see under one window."""

    item: StepItem
    start: int  # packed row of its first row
    first: int  # prefix position that the first row sees first; later rows see no earlier ones

    @property
    def num_rows(self) -> int:
        return len(self.item.tokens)

    @property
    def num_keys(self) -> int:
        return len(self.item.prefix_slots) - self.first + self.num_rows


@dataclass(frozen=True, slots=True)
class _SlotGroup:
    """Sessions computed in one call, padded to R rows and L keys."""

    size: int  # B
    num_rows: int  # R
    rows: Tensor | None  # int64 [B * R] packed rows; None if these are all rows in order
    keys: Tensor  # int64 [B * L] slots
    mask: Tensor | None  # [B, 1, G * R, L] added to the scores; None if every row sees every key

    def gather(self, kv: LayerKV) -> tuple[Tensor, Tensor]:
        """Return this group's keys [B, Hkv, L, Dk] and values [B, Hkv, L, Dv]."""
        rows = kv.rows.index_select(0, self.keys)
        rows = rows.view(self.size, -1, *rows.shape[1:]).transpose(1, 2)
        return rows[..., : kv.key_depth], rows[..., kv.key_depth :]


@dataclass(frozen=True, slots=True)
class _PaddedLayout:
    """The groups of a step under one window, and where each packed row is in their results."""

    groups: tuple[_SlotGroup, ...]
    order: Tensor | None  # int64 [T]; None if the results are already in packed order


class TorchRefBackend(AttentionBackend):
    """Gathers slots and calls scaled_dot_product_attention, or matrix products where that lacks a term."""

    def prepare(self, step: PackedStep, device: torch.device) -> TorchRefStep:
        return TorchRefStep(step, device)


class TorchRefStep(StepAttention):
    """Holds one step's layouts, made when a layer first asks for a variant."""

    def __init__(self, step: PackedStep, device: torch.device) -> None:
        self._step = step
        self._device = device
        self._layouts: dict[tuple[int | None, int], _PaddedLayout] = {}

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        num_rows, heads = query.shape[2], query.shape[1]
        kv_heads = kv.keys.shape[1]
        layout = self._layout(terms.window, heads // kv_heads, query.dtype)
        rows = query[0].transpose(0, 1)  # [T, Hq, D]
        parts = [_attend_group(group, rows, kv, terms) for group in layout.groups]
        result = parts[0] if len(parts) == 1 else torch.cat(parts)
        if layout.order is not None:
            result = result.index_select(0, layout.order)
        return result.view(1, num_rows, heads, -1).contiguous()  # as transformers' own; AFMoE relies on it

    def _layout(self, window: int | None, share: int, dtype: torch.dtype) -> _PaddedLayout:
        if (window, share) not in self._layouts:
            self._layouts[window, share] = _build_layout(self._step, window, share, dtype, self._device)
        return self._layouts[window, share]


def _attend_group(group: _SlotGroup, rows: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
    """Attention of one group. `rows` is [T, Hq, Dk]; returns [B * R, Hq, Dv].

    The G query heads of a KV head are laid out as more rows of it, so that keys are not repeated.
    """
    if group.rows is not None:
        rows = rows.index_select(0, group.rows)
    size, num_rows, (heads, depth) = group.size, group.num_rows, rows.shape[1:]
    kv_heads = kv.keys.shape[1]
    grouped = rows.view(size, num_rows, kv_heads, heads // kv_heads, depth).permute(0, 2, 3, 1, 4)
    query = grouped.reshape(size, kv_heads, -1, depth)
    result = attend_masked(query, *group.gather(kv), group.mask, terms)
    result = result.view(size, kv_heads, heads // kv_heads, num_rows, -1).permute(0, 3, 1, 2, 4)
    return result.reshape(size * num_rows, heads, -1)


def attend_masked(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, terms: AttentionTerms
) -> Tensor:
    """Attend from query [B, Hkv, G * R, Dk] to keys and values [B, Hkv, L, D], with the mask added."""
    if terms.softcap is not None or terms.sinks is not None:
        return _explicit_attention(query, keys, values, mask, terms)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=terms.scaling)


def _explicit_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, terms: AttentionTerms
) -> Tensor:
    """Attention with soft-capped scores (Gemma 2) and sinks (gpt-oss); softmax in float32, as theirs.

    query [B, Hkv, G * R, Dk], keys and values [B, Hkv, L, D]; returns [B, Hkv, G * R, Dv].
    """
    scores = torch.matmul(query, keys.transpose(2, 3)) * terms.scaling
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    if mask is not None:
        scores = scores + mask
    if terms.sinks is not None:
        share = terms.sinks.numel() // query.shape[1]
        sinks = terms.sinks.view(1, -1, share, 1).expand(query.shape[0], -1, -1, query.shape[2] // share)
        scores = torch.cat((scores, sinks.reshape(*query.shape[:3], 1).to(scores.dtype)), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.matmul(weights[..., : keys.shape[2]], values)


def _build_layout(
    step: PackedStep, window: int | None, share: int, dtype: torch.dtype, device: torch.device
) -> _PaddedLayout:
    spans = make_spans(step, window)
    in_place = len({(span.num_rows, span.num_keys) for span in spans}) == 1
    if in_place:
        return _PaddedLayout((_build_group(spans, window, share, dtype, device, packed_rows=None),), None)
    members = partition(spans)
    rows = [_padded_rows(each) for each in members]
    groups = [
        _build_group(each, window, share, dtype, device, own) for each, own in zip(members, rows, strict=True)
    ]
    packed = np.concatenate(rows)
    order = np.empty(step.num_rows, dtype=np.int64)
    order[packed] = np.arange(len(packed))  # of a row and its paddings any will do, as they are equal
    return _PaddedLayout(tuple(groups), _to_device(order, device))


def make_spans(step: PackedStep, window: int | None) -> list[SlotSpan]:
    """Return one span for each item that has rows."""
    return [
        SlotSpan(item, start, 0 if window is None else max(0, len(item.prefix_slots) - window + 1))
        for item, start in zip(step.items, step.starts, strict=False)
        if len(item.tokens)
    ]


def partition(spans: Sequence[SlotSpan]) -> list[list[SlotSpan]]:
    """Group spans of similar size, so that padding stays within PADDING_FACTOR and PADDING_SLACK."""
    groups: list[list[SlotSpan]] = []
    needed = widest = 0
    for span in sorted(spans, key=lambda one: (one.num_rows, one.num_keys)):
        needed += span.num_rows * span.num_keys
        widest = max(widest, span.num_keys)
        padded = (len(groups[-1]) + 1) * span.num_rows * widest if groups else 0
        if groups and padded <= PADDING_FACTOR * needed + PADDING_SLACK:
            groups[-1].append(span)
        else:
            groups.append([span])
            needed, widest = span.num_rows * span.num_keys, span.num_keys
    return groups


def _padded_rows(spans: Sequence[SlotSpan]) -> IndexArray:
    """Packed rows of the spans, each padded to the longest with its own last row; int64 [B * R]."""
    steps = np.arange(max(span.num_rows for span in spans))
    return np.concatenate([span.start + np.minimum(steps, span.num_rows - 1) for span in spans])


def _build_group(
    spans: Sequence[SlotSpan],
    window: int | None,
    share: int,
    dtype: torch.dtype,
    device: torch.device,
    packed_rows: IndexArray | None,
) -> _SlotGroup:
    num_rows = max(span.num_rows for span in spans)
    num_keys = max(span.num_keys for span in spans)
    keys = np.empty((len(spans), num_keys), dtype=np.int64)
    visible = np.zeros((len(spans), num_rows, num_keys), dtype=np.bool_)
    for index, span in enumerate(spans):
        _fill_keys(keys[index], span)
        _fill_visible(visible[index], span, window)
    return _SlotGroup(
        size=len(spans),
        num_rows=num_rows,
        rows=None if packed_rows is None else _to_device(packed_rows, device),
        keys=_to_device(keys.reshape(-1), device),
        mask=None if bool(visible.all()) else _additive_mask(visible, share, dtype, device),
    )


def _fill_keys(keys: IndexArray, span: SlotSpan) -> None:
    """Slots of the visible prefix, of the rows, and as padding the last row's, which holds finite numbers."""
    split = span.num_keys - span.num_rows
    keys[:split] = span.item.prefix_slots[span.first :]
    keys[split : span.num_keys] = span.item.slots
    keys[span.num_keys :] = span.item.slots[-1]


def _fill_visible(visible: NDArray[np.bool_], span: SlotSpan, window: int | None) -> None:
    """bool [R, L], False on entry. Padding rows are copies of the last row, so that no row sees nothing."""
    split, num_rows, num_keys = span.num_keys - span.num_rows, span.num_rows, span.num_keys
    visible[:num_rows, :split] = True
    visible[:num_rows, split:num_keys] = ancestor_mask(span.item.parents)
    if window is not None:
        rows = span.item.positions.astype(np.int64)
        positions = np.concatenate((np.arange(span.first, span.first + split, dtype=np.int64), rows))
        visible[:num_rows, :num_keys] &= rows[:, None] - positions[None, :] < window
    visible[num_rows:] = visible[num_rows - 1]


def _additive_mask(
    visible: NDArray[np.bool_], share: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """bool [B, R, L] to 0 and -inf [B, 1, G * R, L], once for each query head of a KV head."""
    mask = np.where(visible, np.float32(0.0), np.float32(-np.inf))
    return torch.from_numpy(np.tile(mask, (1, share, 1))[:, None]).to(device, dtype)


def _to_device(array: IndexArray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
