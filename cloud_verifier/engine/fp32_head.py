"""Final logits in float32, where the model computes in less.

In bfloat16 two best logits are exactly equal in about 4 % of rows of Gaussian logits over 32k tokens, and
rounding alone moves the argmax in 2 %. The products are the model's own; only the sum is not rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def install_fp32_head(head: nn.Module | None) -> None:
    """Make `head` return float32 logits. Only a plain `nn.Linear` is changed, no quantized one."""
    if type(head) is not nn.Linear or head.weight.dtype not in (torch.bfloat16, torch.float16):
        return
    kind = _SharedHead if isinstance(head.weight, DTensor) else _Fp32Head
    head.forward = kind(head)  # type: ignore[assignment]  # on the instance; its class is untouched


class _Fp32Head:
    """hidden [..., H] in half precision to logits float32 [..., V]."""

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._wide: Tensor | None = None  # CPU only: the weight in float32, made at the first call

    def __call__(self, hidden: Tensor) -> Tensor:
        if not hidden.numel():  # a step of unfinished prompts wants no logits
            shape = (*hidden.shape[:-1], self._head.out_features)
            return torch.empty(shape, dtype=torch.float32, device=hidden.device)
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._product(hidden, self._head.weight, self._head.bias)

    def _product(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`functional.linear` with float32 sums."""
        wide_bias = None if bias is None else bias.float()
        if (
            weight.dtype == torch.float32
        ):  # the probe widens it for a while (`widening.py`); keep no reference
            return functional.linear(hidden.float(), weight, wide_bias)
        if hidden.is_cuda:
            flat = hidden.reshape(-1, hidden.shape[-1])
            logits = torch.mm(flat, weight.t(), out_dtype=torch.float32)
            logits = logits.view(*hidden.shape[:-1], weight.shape[0])
            return logits if wide_bias is None else logits + wide_bias
        if self._wide is None:
            self._wide = weight.detach().float()
        return functional.linear(hidden.float(), self._wide, wide_bias)


class _SharedHead(_Fp32Head):
    """The head of a model that several processes share. Its `forward` is transformers', which gives the
    product this process's part of the weight and gathers the logits of all parts."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__(head)
        self._forward = head.forward

    def _logits(self, hidden: Tensor) -> Tensor:
        with _Linear(self._product):
            return self._forward(hidden)


class _Linear(TorchFunctionMode):
    """Calls `product` in place of `functional.linear`."""

    def __init__(self, product: Callable[..., Tensor]) -> None:
        super().__init__()
        self._product = product

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (self._product if function is functional.linear else function)(*args, **(kwargs or {}))
