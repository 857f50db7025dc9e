"""Weights of a target in fewer bits, chosen at the command line and applied when it is loaded.

Only linear layers change, so that attention, KV and choices are what they are without. The output head keeps
its precision: choices are made from its products, near-ties between the best two tokens are what rounding
decides, and where it is tied to the embeddings a second copy would cost more than it saves. So do the routers
of experts, a thousandth of the weights that decides where all the others are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from cloud_verifier.engine.refusals import Refusal
from common.errors import UserError

QUANTIZATIONS = ("int8",)
"""int8: each weight as 8 bits, each output row with a scale of its own (torchao's weight-only kind)."""

ROUTERS = {"router", "gate"}
"""What linear layers are called whose outputs choose experts."""


@dataclass(frozen=True, slots=True)
class Shrinkage:
    """What quantizing did. Bytes are of all weights, embeddings and head included."""

    kind: str
    num_layers: int  # linear layers that changed
    bytes_before: int
    bytes_after: int

    @property
    def ratio(self) -> float:
        return self.bytes_after / self.bytes_before

    def __str__(self) -> str:
        return (
            f"{self.num_layers} linear layers in {self.kind}; weights take {self.bytes_after / 1e6:,.1f} MB, "
            f"{self.ratio:.2f} of the {self.bytes_before / 1e6:,.1f} MB before"
        )


def check_quantization(kind: str) -> None:
    """Raise `UserError` if `kind` is unknown, or if what it needs is not installed."""
    if kind not in QUANTIZATIONS:
        raise UserError(f"quantization '{kind}' is unknown; choose {', '.join(QUANTIZATIONS)}")
    try:
        import torchao.quantization  # noqa: F401 - only to see whether it is there
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed; pip install 'forerun[verifier,quantized]'"
        ) from error


def quantize(name: str, model: nn.Module, head: nn.Module | None, kind: str) -> Shrinkage:
    """Quantize the linear layers of `model` in place, all but its `head` and routers.

    Raises `UserError` as `check_quantization`, and `Refusal` if there is nothing to quantize.
    """
    check_quantization(kind)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    chosen = {id(layer) for layer in _linear_layers(model, head)}
    if not chosen:
        raise Refusal(name, f"it has no linear layers that could be quantized to {kind}")
    before = weight_bytes(model)
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda module, _: id(module) in chosen)
    return Shrinkage(kind, len(chosen), before, weight_bytes(model))


def weight_bytes(model: nn.Module) -> int:
    """Memory of all parameters, those shared by two modules counted once."""
    return sum(_stored_bytes(tensor) for tensor in model.parameters())


def _linear_layers(model: nn.Module, head: nn.Module | None) -> Iterator[nn.Module]:
    for path, module in model.named_modules():
        if type(module) is nn.Linear and module is not head and ROUTERS.isdisjoint(path.split(".")):
            yield module


def _stored_bytes(tensor: Tensor) -> int:
    """`nbytes` of a tensor subclass tells what its values would take, not what they do."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
        return sum(_stored_bytes(part) for part in parts if isinstance(part, Tensor))
    return tensor.nbytes
