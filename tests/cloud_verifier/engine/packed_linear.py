"""Linear layers as some quantizations have them: integers in buffers, no tensor that tells the weights."""

from typing import Any

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """8 bits a weight, in buffers; made of an `nn.Linear` without bias."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.scale = float(weight.abs().max()) / 127
        self.qweight: Tensor
        self.register_buffer("qweight", (weight / self.scale).round().to(torch.int32))

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, (self.qweight * self.scale).to(hidden.dtype))


def pack_linear(model: Any) -> None:
    """Replace a layer's projection down."""
    mlp = model.model.layers[0].mlp
    mlp.down_proj = PackedLinear(mlp.down_proj)
