"""The deterministic engine, level L2 of docs/determinism.md: the same bits for any batch mix.

Every step is computed in tiles of a fixed number of rows (`exact_tiles`), each row attends alone
(`exact_attention`), and what else could depend on a row's place is switched off (`exact_arithmetic`). So
plain decoding is a step with nothing proposed, and recomputed KV equals kept KV bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from cloud_verifier.engine.attention import (
    AttentionBackend,
    AttentionTerms,
    StepAttention,
    StepContext,
    current_step,
)
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.exact_arithmetic import activate_row_by_row, use_exact_arithmetic
from cloud_verifier.engine.exact_attention import ExactBackend
from cloud_verifier.engine.exact_tiles import MAX_TILE_ROWS, TILE_ROWS, Tile, rows_alone, tiles
from cloud_verifier.engine.kv import LayerKV
from cloud_verifier.engine.packing import PackedStep
from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.engine.transformers_adapter import TargetModel


class ExactEngine(TorchEngine):
    """A `TorchEngine` whose logits are a function of a row's path alone, bit for bit.

    The bits also depend on what does not change while it serves: the device, torch's number of threads (that
    of the thread which makes the engine), `tile_rows`, the libraries' versions. `model` is changed for good:
    its activations and experts are computed row by row. Raises `UserError` for `tile_rows` out of range and
    for a mixture of experts that cannot be computed so.
    """

    def __init__(
        self,
        model: TargetModel,
        num_slots: int,
        *,
        tile_rows: int = TILE_ROWS,
        backend: AttentionBackend | None = None,
        fingerprint: bytes = b"",
    ) -> None:
        if not 1 <= tile_rows <= MAX_TILE_ROWS:
            raise UserError(f"tile_rows is {tile_rows}; it must lie in [1, {MAX_TILE_ROWS}]")
        super().__init__(model, num_slots, backend=backend or ExactBackend(), fingerprint=fingerprint)
        self.tile_rows = tile_rows
        self.num_threads = torch.get_num_threads()
        self._trash = num_slots  # the store's last slot, which no plan names
        use_exact_arithmetic(model.device)
        model.compute_experts_row_by_row()
        if model.device.type == "cpu":
            activate_row_by_row(model.module)

    def forward(self, step: PackedStep) -> Tensor:
        """Write the rows' KV and return logits float32 [O, V], tile by tile."""
        # The thread that steps may not be the one that loaded, and torch's number is a thread's own.
        if torch.get_num_threads() != self.num_threads:
            torch.set_num_threads(self.num_threads)
        parts = [self._run(tile) for tile in tiles(rows_alone(step), self.tile_rows, self._trash)]
        return torch.cat(parts)

    def _run(self, tile: Tile) -> Tensor:
        """One forward of the fixed shape. The head computes all rows of a tile, or none if none is wanted."""
        device = self.model.device
        tokens, positions, slots = torch.from_numpy(tile.inputs).to(device)
        wanted = torch.arange(self.tile_rows if len(tile.outputs) else 0, device=device)
        attention = self.backend.prepare(tile.step, device)
        own = _OwnRows(attention, tile.step.num_rows)
        with current_step(StepContext(self._kv, slots, own)):
            logits = self.model.forward(tokens[None], positions[None], wanted)
        return logits.index_select(0, torch.from_numpy(tile.outputs).to(device))


class _OwnRows:
    """Shows a backend the rows of a tile that are real; the padding rows get zeros."""

    def __init__(self, attention: StepAttention, num_rows: int) -> None:
        self._attention = attention
        self._num_rows = num_rows

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        """See `StepAttention.attend`."""
        attended = self._attention.attend(query[:, :, : self._num_rows], kv, terms)
        return functional.pad(attended, (0, 0, 0, 0, 0, query.shape[2] - self._num_rows))
