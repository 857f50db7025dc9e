"""What makes a forward of fixed shape give each row the same bits wherever it stands in it.

Three things do not by themselves. Accelerators may round to TF32 or sum in half precision, as their
heuristics say. Experts computed together get as many rows as the step has for them. And torch's CPU kernels
compute an activation's last few elements, and those at the border of two threads, with other instructions
than the rest (measured: SiLU, tanh-GELU and sigmoid differ in the last bit), so that a row's bits would
depend on its place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
"""The modules whose classes compute element by element and are made to see one row at a time."""


def use_exact_arithmetic(device: torch.device) -> None:
    """Switch off what trades reproducibility for speed. Process-wide, as torch's switches are."""
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
    """Let every activation of `model` see one row at a time, on this instance; how many there are."""
    found = [module for module in model.modules() if type(module).__module__ in ACTIVATIONS]
    for module in found:
        if not isinstance(module.forward, _RowByRow):
            module.forward = _RowByRow(module.forward)
    return len(found)


class _RowByRow:
    """states [..., N] to the same, by calls of [N]: the bits are a function of the row and N."""

    def __init__(self, activate: Callable[[Tensor], Tensor]) -> None:
        self._activate = activate

    def __call__(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, states.shape[-1]).unbind(0)
        return torch.stack([self._activate(row) for row in rows]).view(states.shape)
