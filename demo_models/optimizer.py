"""Muon for the matrices of the blocks, AdamW for the rest, under one learning-rate factor.

Muon (Jordan 2024) orthogonalises each matrix's momentum by five Newton-Schulz steps. It is written here
because the one in `torch.optim` iterates in bf16, which a CPU without bf16 instructions emulates slowly.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, from Jordan 2024."""


def orthogonalise(matrices: Tensor, num_steps: int = 5) -> Tensor:
    """Return the nearest (semi-)orthogonal matrices, approximately, for a stack `[n, rows, columns]`."""
    first, third, fifth = NEWTON_SCHULZ
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = first * x + (third * gram + fifth * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates; matrices of one shape are handled in one batched product."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever re-evaluated here
        """Apply one update from the gradients at hand."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for param in group["params"]:
                by_shape.setdefault(param.shape, []).append(param)
            for params in by_shape.values():
                self._step_stack(params, group["lr"], group["momentum"])

    def _step_stack(self, params: list[Tensor], lr: float, momentum: float) -> None:
        update = orthogonalise(torch.stack([self._nesterov(param, momentum) for param in params]))
        rows, columns = params[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        for param, change in zip(params, update, strict=True):
            param.add_(change, alpha=-lr * scale)

    def _nesterov(self, param: Tensor, momentum: float) -> Tensor:
        assert param.grad is not None
        buffer: Tensor = self.state[param].setdefault("momentum", torch.zeros_like(param))
        buffer.lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(buffer, momentum)


class PairOptimizer:
    """The two optimizers of one model behind `step` and `scale`."""

    def __init__(self, model: torch.nn.Module, matrix_lr: float, other_lr: float) -> None:
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, lr=matrix_lr),
            torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0),
        )
        self._base = tuple(self.learning_rates)

    @property
    def learning_rates(self) -> list[float]:
        """Current rates: matrices, then the rest."""
        return [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]

    def scale(self, factor: float) -> None:
        """Set both learning rates to `factor` times their base values."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        for group, base in zip(groups, self._base, strict=True):
            group["lr"] = base * factor

    def step(self) -> None:
        """Apply one update and clear the gradients."""
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
