"""Final logits in float32, where the model computes in less.

In bfloat16 two best logits are exactly equal in about 4 % of rows of Gaussian logits over 32k tokens, and
rounding alone moves the argmax in 2 %. The products are the model's own; only the sum is not rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional


def install_fp32_head(head: nn.Module | None) -> None:
    """Make `head` return float32 logits. Only a plain `nn.Linear` is changed, no quantized one."""
    if type(head) is not nn.Linear or head.weight.dtype not in (torch.bfloat16, torch.float16):
        return
    if isinstance(head.weight, DTensor):
        _widen(head)
    else:
        head.forward = _Fp32Head(head)  # type: ignore[assignment]  # on the instance; its class is untouched


def _widen(head: nn.Linear) -> None:
    """A head that several processes share computes through hooks of transformers, which must stay: it gets
    its part of the weight in float32, which is a copy also where the embeddings are the same weight.
    """
    for name, tensor in list(head.named_parameters(recurse=False)):
        head.register_parameter(name, nn.Parameter(tensor.detach().float(), requires_grad=False))
    head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))


class _Fp32Head:
    """hidden [..., H] in half precision to logits float32 [..., V]."""

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._wide: Tensor | None = None  # CPU only: the weight in float32, made at the first call

    def __call__(self, hidden: Tensor) -> Tensor:
        weight: Tensor = self._head.weight
        bias: Tensor | None = self._head.bias
        if hidden.is_cuda and weight.dtype != torch.float32:  # else widened for a while (`widening.py`)
            flat = hidden.reshape(-1, hidden.shape[-1])
            logits = torch.mm(flat, weight.t(), out_dtype=torch.float32)
            logits = logits.view(*hidden.shape[:-1], -1)
            return logits if bias is None else logits + bias.float()
        if self._wide is None:
            self._wide = weight.detach().float()
        return functional.linear(hidden.float(), self._wide, None if bias is None else bias.float())
