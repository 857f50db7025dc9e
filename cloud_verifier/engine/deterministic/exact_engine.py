"""Implements the deterministic engine, level L2 of docs/determinism.md: the same bits for any batch mix.

The engine computes every step in tiles of a fixed number of rows. Each row attends alone. Whatever else could
depend on a row's place is switched off. So plain decoding is a step with no proposed nodes, and recomputed KV
equals kept KV bit for bit.

The reference backend pads a session to the longest of its group, so its bits change with the company.
Here a row attends by itself. Its keys lie in the order of their positions, padded to a length that is a
function of their number. So every kernel meets one of a few dozen shapes, whatever is in the step.

Three more things depend on a row's place. Accelerators may round to TF32 or sum in half precision, by
heuristics. Experts computed together get as many rows as the step has for them. And torch's CPU kernels
compute an activation's last few elements, and those at the border of two threads, with other instructions
than the rest (measured: SiLU, tanh-GELU and sigmoid differ in the last bit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloud_verifier.core.engine_protocol import StepItem
from cloud_verifier.engine.attention.backend import (
    AttentionBackend,
    AttentionTerms,
    LayerKV,
    StepAttention,
    StepContext,
    current_step,
)
from cloud_verifier.engine.attention.torch_ref import attend_masked
from cloud_verifier.engine.deterministic.tiles import TILE_ROWS, rows_alone, tiles
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.torch_engine import OwnDraft, TorchEngine

if TYPE_CHECKING:
    from cloud_verifier.engine.model.transformers_adapter import TargetModel


class ExactEngine(TorchEngine):
    """Extends `TorchEngine`: logits are a function of a row's path alone, bit for bit.

    The bits also depend on what does not change while it serves: the device, torch's number of threads (that
    of the thread which makes the engine), `tile_rows`, the libraries' versions. `model` is changed for good:
    its activations and experts are computed row by row. Raises `UserError` for a mixture of experts that
    cannot be computed so.
    """

    def __init__(
        self,
        model: TargetModel,
        num_slots: int,
        *,
        tile_rows: int = TILE_ROWS,
        backend: AttentionBackend | None = None,
        fingerprint: bytes = b"",
        draft: OwnDraft | None = None,
    ) -> None:
        super().__init__(
            model, num_slots, backend=backend or ExactBackend(), fingerprint=fingerprint, draft=draft
        )
        self.info = replace(self.info, repeats=True)
        self.tile_rows = tile_rows
        self.num_threads = torch.get_num_threads()
        self._trash = self.kv.num_slots - 1  # which no plan names
        use_exact_arithmetic(model.device)
        model.compute_experts_row_by_row()
        if model.device.type == "cpu":
            activate_row_by_row(model.module)

    def forward(self, step: PackedStep) -> Tensor:
        """Write the rows' KV and return logits float32 [O, V], tile by tile."""
        # The thread that steps may not be the one that loaded, and torch's number is a thread's own.
        if torch.get_num_threads() != self.num_threads:
            torch.set_num_threads(self.num_threads)
        parts = [self._run(*tile) for tile in tiles(rows_alone(step), self.tile_rows, self._trash)]
        return torch.cat(parts)

    def _run(self, tile: PackedStep, inputs: IndexArray) -> Tensor:
        """Run one forward of the fixed shape. The head computes all rows of a tile, or none at all."""
        device = self.model.device
        tokens, positions, slots = torch.from_numpy(inputs).to(device)
        wanted = torch.arange(self.tile_rows if len(tile.outputs) else 0, device=device)
        own = _OwnRows(self.backend.prepare(tile, device), tile.num_rows)
        with current_step(StepContext(self.kv, slots, own)):
            logits = self.model.forward(tokens[None], positions[None], wanted)
        return logits.index_select(0, torch.from_numpy(tile.outputs).to(device))


class _OwnRows(StepAttention):
    """Shows a backend the real rows of a tile; the padding rows get zeros."""

    def __init__(self, attention: StepAttention, num_rows: int) -> None:
        self._attention = attention
        self._num_rows = num_rows

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        attended = self._attention.attend(query[:, :, : self._num_rows], kv, terms)
        return functional.pad(attended, (0, 0, 0, 0, 0, query.shape[2] - self._num_rows))


SHORTEST = 32
"""Keys of the smallest call; fewer would save nothing."""


def padded_length(num_keys: int) -> int:
    """Return the least length >= `num_keys` of 32, 40, 48, 56, 64, 80, ...: four to an octave, so at most a
    quarter is padding and 128k positions need 49 shapes."""
    if num_keys <= SHORTEST:
        return SHORTEST
    unit: int = 2 ** ((num_keys - 1).bit_length() - 3)
    return -(-num_keys // unit) * unit


class ExactBackend(AttentionBackend):
    """Computes attention so that no row has company; an `AttentionBackend`."""

    def prepare(self, step: PackedStep, device: torch.device) -> ExactStep:
        return ExactStep(rows_alone(step), device)


_Layout = tuple[list[Tensor], list[tuple[int, Tensor]]]
"""Runs int64 [L] of slots, each gathered once for all rows whose keys it begins with. And for each row its
run and a mask [1, 1, G, L], added to the scores, which leaves the run's first keys, the row's own."""


class ExactStep(StepAttention):
    """Holds one step's calls, laid out when a layer first asks for a window."""

    def __init__(self, step: PackedStep, device: torch.device) -> None:
        self._step = step
        self._device = device
        self._layouts: dict[tuple[int | None, int], _Layout] = {}

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        share = query.shape[1] // kv.keys.shape[1]
        slots, calls = self._layout(terms.window, share, query.dtype)
        runs = [kv.rows.index_select(0, each).transpose(0, 1)[None] for each in slots]
        _, heads, num_rows, depth = query.shape
        rows = query[0].transpose(0, 1).reshape(num_rows, heads // share, share, depth)
        parts = [
            _attend(row, runs[run], kv.key_depth, mask, terms)
            for row, (run, mask) in zip(rows.unbind(0), calls, strict=True)
        ]
        return torch.cat(parts).flatten(1, 2)[None]

    def _layout(self, window: int | None, share: int, dtype: torch.dtype) -> _Layout:
        if (window, share) in self._layouts:
            return self._layouts[window, share]
        keys = [_keys(item, window) for item in self._step.items]
        holders = share_runs(keys, self._step.positions.tolist())
        runs = {holder: run for run, holder in enumerate(dict.fromkeys(holders))}
        most = max(map(len, keys))
        cliff = torch.zeros(2 * padded_length(most), dtype=dtype, device=self._device)
        cliff[most:] = -torch.inf
        calls = []
        for one, holder in zip(keys, holders, strict=True):
            mask = cliff[most - len(one) :][: padded_length(len(one))]
            calls.append((runs[holder], mask.expand(1, 1, share, -1)))
        slots = [torch.from_numpy(_padded(keys[holder])).to(self._device) for holder in runs]
        self._layouts[window, share] = slots, calls
        return slots, calls


def share_runs(keys: Sequence[IndexArray], positions: Sequence[int]) -> list[int]:
    """Return for each row the row whose run of keys begins with its own: itself, or one below it.

    `keys` are the rows' slots by position, their own last, cut to a window. Keys that were cut begin
    elsewhere and have a run of their own.
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
    """Attend with one row [Hkv, G, Dk] to a run [1, Hkv, L or more, Dk + Dv]. Return [1, Hkv, G, Dv].

    The row is copied, so that no kernel meets another alignment. A run always begins at an aligned address,
    and what it holds behind the row's keys is finite and masked.
    """
    query = row.clone(memory_format=torch.contiguous_format)[None]
    seen = run[:, :, : mask.shape[3]]
    return attend_masked(query, seen[..., :depth], seen[..., depth:], mask, terms)


def _keys(item: StepItem, window: int | None) -> IndexArray:
    """Return the slots that a row alone sees, by position, its own last; int64 [N]."""
    keys = np.concatenate((item.prefix_slots, item.slots), dtype=np.int64)
    return keys if window is None else keys[-window:]


def _padded(keys: IndexArray) -> IndexArray:
    """`keys` and, up to their padded length, the last one again, which holds finite numbers."""
    return np.append(keys, np.full(padded_length(len(keys)) - len(keys), keys[-1]))


ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
"""The modules whose classes compute element by element and are made to see one row at a time."""


def use_exact_arithmetic(device: torch.device) -> None:
    """Switch off what trades reproducibility for speed. Torch's switches hold for the whole process."""
    torch.set_float32_matmul_precision("highest")
    if device.type != "cuda":
        return
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory costs time, and nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at import


def activate_row_by_row(model: nn.Module) -> int:
    """Let every activation of `model` see one row at a time; return the number of activations."""
    activations = [module for module in model.modules() if type(module).__module__ in ACTIVATIONS]
    for module in activations:
        if not isinstance(module.forward, _RowByRow):
            module.forward = _RowByRow(module.forward)
    return len(activations)


class _RowByRow:
    """states [..., N] to the same, by calls of [N]: the bits are a function of the row and N."""

    def __init__(self, activate: Callable[[Tensor], Tensor]) -> None:
        self._activate = activate

    def __call__(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, states.shape[-1]).unbind(0)
        return torch.stack([self._activate(row) for row in rows]).view(states.shape)
