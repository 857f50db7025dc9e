"""Keeps the latents of latent attention (DeepSeek V2 and later) in KV slots, unexpanded.

transformers' layers compress a token's keys and values into one latent and expand it for all heads before
attention. Here a head's part of that expansion is applied to its query and to its result: q (W c) = (W' q) c,
and the sum of p (V c) is V times the sum of p c (arXiv 2405.04434, 2.1.2). So all heads read one latent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cloud_verifier.engine.attention.backend import takes_latents


def keep_latents(model: torch.nn.Module) -> None:
    """Let the layers of `model` with latent attention keep latents. Layers whose expansion is quantized stay
    as they are."""
    for each in model.modules():
        module: Any = each
        if not callable(getattr(module, "expand_kv", None)) or isinstance(module.expand_kv, Latents):
            continue
        expansion = module.kv_b_proj
        if type(expansion) is torch.nn.Linear and type(expansion.weight.data) is Tensor:
            module.expand_kv = Latents(module)


class Latents:
    """Takes the place of a layer's `expand_kv`. Outside a step, and in a step whose attention does not take
    latents, it expands as transformers does."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._expand: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = module.expand_kv

    def __call__(self, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [1, 1, T, R + P] and values [1, 1, T, R] of latents [1, 1, T, R] and [1, 1, T, P]."""
        if not takes_latents():
            return self._expand(latent, rotary)
        return torch.cat((latent, rotary), dim=-1), latent

    def of_query(self, query: Tensor) -> Tensor:
        """Return the query [1, Hq, T, R + P] on latents of a query [1, Hq, T, D + P]."""
        depth = self._module.qk_nope_head_dim
        return torch.cat((query[..., :depth] @ self._heads[:, :depth], query[..., depth:]), dim=-1)

    def of_result(self, result: Tensor) -> Tensor:
        """Return the result [1, T, Hq, Dv] of a result on latents [1, T, Hq, R]."""
        values = self._heads[:, self._module.qk_nope_head_dim :]
        expanded: Tensor = result.transpose(1, 2) @ values.transpose(1, 2)
        return expanded.transpose(1, 2)

    @property
    def _heads(self) -> Tensor:
        """The expansion [Hq, D + Dv, R]; read anew, since the probe widens weights."""
        weight: Tensor = self._module.kv_b_proj.weight
        return weight.view(-1, self._module.qk_nope_head_dim + self._module.v_head_dim, weight.shape[-1])
