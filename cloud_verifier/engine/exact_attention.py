"""Attention whose bits depend on a row's own path alone: one call a row, of a shape that its length decides.

The reference backend pads a session to the longest of its group, and so its bits change with the company.
Here a row attends by itself. Its keys lie in the order of their positions, padded to a length that is a
function of their number, so that every kernel meets one of a few dozen shapes, whatever is in the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.target import StepItem
from cloud_verifier.engine.attention import AttentionTerms
from cloud_verifier.engine.exact_tiles import rows_alone
from cloud_verifier.engine.kv import LayerKV
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.torch_ref import Group, attend_group

SHORTEST = 32
"""Keys of the smallest call; fewer would save nothing."""


def padded_length(num_keys: int) -> int:
    """The least length >= `num_keys` of 32, 40, 48, 56, 64, 80, ...: four to an octave, so at most a quarter
    is padding and 128k positions need 49 shapes."""
    if num_keys <= SHORTEST:
        return SHORTEST
    unit: int = 2 ** ((num_keys - 1).bit_length() - 3)
    return -(-num_keys // unit) * unit


class ExactBackend:
    """An `AttentionBackend` without company. `batch` rows of one length share a call, padded with copies.

    A batch of one row is the least work for a session alone, and the surest. More rows to a call save
    launches on an accelerator; the shapes stay fixed, so the bits may depend on `batch` but on nothing else.
    """

    def __init__(self, batch: int = 1) -> None:
        self._batch = batch

    def prepare(self, step: PackedStep, device: torch.device) -> ExactStep:
        return ExactStep(rows_alone(step), device, self._batch)


@dataclass(frozen=True, slots=True)
class _Layout:
    groups: tuple[Group, ...]
    order: Tensor  # int64 [T]: where in the groups' results each row stands


class ExactStep:
    """One step's calls, laid out when a layer first asks for a window."""

    def __init__(self, step: PackedStep, device: torch.device, batch: int) -> None:
        self._step = step
        self._device = device
        self._batch = batch
        self._layouts: dict[tuple[int | None, int], _Layout] = {}

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        """See `StepAttention.attend`."""
        layout = self._layout(terms.window, query.shape[1] // kv.keys.shape[1], query.dtype)
        rows = query[0].transpose(0, 1)  # [T, Hq, D]
        results = torch.cat([attend_group(group, rows, kv, terms) for group in layout.groups])
        return results.index_select(0, layout.order)[None]

    def _layout(self, window: int | None, share: int, dtype: torch.dtype) -> _Layout:
        layout = self._layouts.get((window, share))
        if layout is None:
            layout = self._lay_out(window, share, dtype)
            self._layouts[window, share] = layout
        return layout

    def _lay_out(self, window: int | None, share: int, dtype: torch.dtype) -> _Layout:
        keys = [_visible(item, window) for item in self._step.items]
        batches = list(_batches([len(one) for one in keys], self._batch))
        groups = [self._group(rows, [keys[row] for row in rows], share, dtype) for rows in batches]
        places = np.concatenate(batches)
        order = np.empty(self._step.num_rows, np.int64)
        order[places] = np.arange(len(places))
        return _Layout(tuple(groups), torch.from_numpy(order).to(self._device))

    def _group(self, rows: IndexArray, keys: list[IndexArray], share: int, dtype: torch.dtype) -> Group:
        """Rows of one padded length. Padding is a row's own slot, which holds finite numbers, masked."""
        length = padded_length(len(keys[0]))
        slots = np.empty((len(rows), length), np.int64)
        mask = np.zeros((len(rows), 1, share, length), np.float32)
        for index, one in enumerate(keys):
            slots[index, : len(one)], slots[index, len(one) :] = one, one[-1]
            mask[index, :, :, len(one) :] = -np.inf
        return Group(
            size=len(rows),
            num_rows=1,
            rows=torch.from_numpy(rows).to(self._device),  # copied out: no kernel meets another alignment
            keys=torch.from_numpy(slots.reshape(-1)).to(self._device),
            mask=torch.from_numpy(mask).to(self._device, dtype),
        )


def _visible(item: StepItem, window: int | None) -> IndexArray:
    """The slots that a row alone sees, its own last; int64 [N]."""
    keys = np.concatenate((item.prefix_slots, item.slots), dtype=np.int64)
    return keys if window is None else keys[-window:]


def _batches(lengths: list[int], size: int) -> Iterator[IndexArray]:
    """Rows by padded length, `size` at a time, the last batch filled up with copies of its last row."""
    rows_of: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_of.setdefault(padded_length(length), []).append(row)
    for rows in rows_of.values():
        for at in range(0, len(rows), size):
            batch = rows[at : at + size]
            yield np.array(batch + batch[-1:] * (size - len(batch)), np.int64)
