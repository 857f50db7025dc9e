"""Attention whose bits depend on a row's own path alone: one call a row, of a shape that its length decides.

The reference backend pads a session to the longest of its group, and so its bits change with the company.
Here a row attends by itself. Its keys lie in the order of their positions, padded to a length that is a
function of their number, so that every kernel meets one of a few dozen shapes, whatever is in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.target import StepItem
from cloud_verifier.engine.attention import AttentionTerms
from cloud_verifier.engine.exact_tiles import rows_alone
from cloud_verifier.engine.kv import LayerKV
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.torch_ref import attend_masked

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
    """An `AttentionBackend` in which no row has company."""

    def prepare(self, step: PackedStep, device: torch.device) -> ExactStep:
        return ExactStep(rows_alone(step), device)


@dataclass(frozen=True, slots=True)
class _Call:
    """One row's: the first keys of a run, as many as the mask is long, and the mask leaves the row's own."""

    run: int
    mask: Tensor  # [1, 1, G, L] added to the scores


@dataclass(frozen=True, slots=True)
class _Layout:
    runs: tuple[Tensor, ...]  # each int64 [L]: slots, gathered once for all rows whose keys they begin with
    calls: tuple[_Call, ...]  # [T]


class ExactStep:
    """One step's calls, laid out when a layer first asks for a window."""

    def __init__(self, step: PackedStep, device: torch.device) -> None:
        self._step = step
        self._device = device
        self._layouts: dict[tuple[int | None, int], _Layout] = {}

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        """See `StepAttention.attend`."""
        share = query.shape[1] // kv.keys.shape[1]
        layout = self._layout(terms.window, share, query.dtype)
        runs = [kv.rows.index_select(0, slots).transpose(0, 1)[None] for slots in layout.runs]
        _, heads, num_rows, depth = query.shape
        rows = query[0].transpose(0, 1).reshape(num_rows, heads // share, share, depth)
        parts = [
            _attend(row, runs[call.run], kv.key_depth, call.mask, terms)
            for row, call in zip(rows.unbind(0), layout.calls, strict=True)
        ]
        return torch.cat(parts).flatten(1, 2)[None]

    def _layout(self, window: int | None, share: int, dtype: torch.dtype) -> _Layout:
        layout = self._layouts.get((window, share))
        if layout is None:
            layout = self._lay_out([_keys(item, window) for item in self._step.items], share, dtype)
            self._layouts[window, share] = layout
        return layout

    def _lay_out(self, keys: list[IndexArray], share: int, dtype: torch.dtype) -> _Layout:
        holders = share_runs(keys, self._step.positions.tolist())
        runs = {holder: run for run, holder in enumerate(dict.fromkeys(holders))}
        most = max(map(len, keys))
        cliff = torch.zeros(2 * padded_length(most), dtype=dtype, device=self._device)
        cliff[most:] = -torch.inf
        calls = []
        for one, holder in zip(keys, holders, strict=True):
            mask = cliff[most - len(one) :][: padded_length(len(one))]
            calls.append(_Call(runs[holder], mask.expand(1, 1, share, -1)))
        slots = [torch.from_numpy(_padded(keys[holder])).to(self._device) for holder in runs]
        return _Layout(tuple(slots), tuple(calls))


def share_runs(keys: Sequence[IndexArray], positions: Sequence[int]) -> list[int]:
    """For each row the row whose run of keys begins with its own: itself, or one below it in the step.

    `keys` are the rows' slots by position, their own last, cut to a window. Keys that were cut begin
    elsewhere, and have a run of their own.
    """
    row_of = {int(one[-1]): row for row, one in enumerate(keys)}
    holders = [-1] * len(keys)
    for row in range(len(keys) - 1, -1, -1):
        if holders[row] >= 0:
            continue
        holders[row] = row
        if len(keys[row]) <= positions[row]:
            continue
        for slot in keys[row][-2::-1].tolist():
            above = row_of.get(slot)
            if above is None or holders[above] >= 0:
                break
            holders[above] = row
    return holders


def _attend(row: Tensor, run: Tensor, depth: int, mask: Tensor, terms: AttentionTerms) -> Tensor:
    """One row [Hkv, G, Dk] over a run [1, Hkv, L or more, Dk + Dv]; returns [1, Hkv, G, Dv].

    The row is copied, so that no kernel meets another alignment. A run always begins at an aligned address,
    and what it holds behind the row's keys is finite and masked.
    """
    query = row.clone(memory_format=torch.contiguous_format)[None]
    seen = run[:, :, : mask.shape[3]]
    return attend_masked(query, seen[..., :depth], seen[..., depth:], mask, terms)


def _keys(item: StepItem, window: int | None) -> IndexArray:
    """The slots that a row alone sees, by position, its own last; int64 [N]."""
    keys = np.concatenate((item.prefix_slots, item.slots), dtype=np.int64)
    return keys if window is None else keys[-window:]


def _padded(keys: IndexArray) -> IndexArray:
    """`keys` and, up to their padded length, the last one again, which holds finite numbers."""
    return np.append(keys, np.full(padded_length(len(keys)) - len(keys), keys[-1]))
