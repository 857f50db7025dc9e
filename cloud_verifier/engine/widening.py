"""A model that computes in float32 for a while, whatever precision its weights are stored in.

The conformance probe asks whether two ways through a model are the same function. In bfloat16 rounding hides
small differences; widened, each weight keeps its value, every product and sum is float32, and rounding
explains a millionth. A decoder layer is widened when it is entered and put back when it is left, so that
beside the model there must be memory for one layer, the embeddings and the head in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)

_PLAIN_KINDS = {"Tensor", "Parameter", "Buffer", "DTensor"}
_PLAIN_DTYPES = {torch.float64, torch.float32, *HALF, torch.int64, torch.bool}
"""What models hold that nobody has quantized: weights and tables, positions, masks."""

_Undo = Callable[[], None]


def can_widen(model: nn.Module) -> bool:
    """Whether every weight is a plain tensor of floats, or one that tells its values (`dequantize`)."""
    tensors = [*model.parameters(), *model.buffers()]
    return all(_is_plain(tensor) or _tells_values(tensor) for tensor in tensors)


@contextmanager
def float32_inside(model: nn.Module, num_layers: int) -> Iterator[None]:
    """Let `model` compute in float32 until the block ends. `num_layers` tells its list of decoder layers."""
    layers = _decoder_layers(model, num_layers)
    inner = {id(module) for layer in layers for module in layer.modules()}
    with ExitStack() as stack:
        for layer in layers:
            _widen_on_entry(layer, stack)
        stack.callback(_widen([module for module in model.modules() if id(module) not in inner]))
        yield


def _decoder_layers(model: nn.Module, num_layers: int) -> list[nn.Module]:
    """The elements of the first list of `num_layers` modules; none if there is no such list."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return list(module)
    return []


def _widen_on_entry(layer: nn.Module, stack: ExitStack) -> None:
    undo: list[_Undo] = []

    def enter(*_: Any) -> None:
        undo.append(_widen(list(layer.modules())))

    def leave(*_: Any) -> None:
        if undo:  # it is called even where entering failed
            undo.pop()()

    stack.callback(layer.register_forward_pre_hook(enter, prepend=True).remove)
    stack.callback(layer.register_forward_hook(leave, always_call=True).remove)


def _widen(modules: list[nn.Module]) -> _Undo:
    """Put float32 tensors in the place of the modules' own; returns what puts them back."""
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    wide: dict[int, Tensor] = {}  # by the tensor's identity: embeddings and head are often one
    for module in modules:
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for own in tables:
            for name, tensor in own.items():
                if tensor is not None and tensor.dtype in HALF:
                    kept.append((own, name, tensor))
                    if id(tensor) not in wide:
                        wide[id(tensor)] = _values(tensor)
                    own[name] = wide[id(tensor)]

    def put_back() -> None:
        for own, name, tensor in kept:
            own[name] = tensor

    return put_back


def _values(tensor: Tensor) -> Tensor:
    """The same values in float32."""
    # Ordinary tensors, also in inference mode: one that is divided among processes cannot be made of others.
    with torch.inference_mode(False), torch.no_grad():
        return (tensor if _is_plain(tensor) else tensor.dequantize()).float()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor).__name__ in _PLAIN_KINDS and tensor.dtype in _PLAIN_DTYPES


def _tells_values(tensor: Tensor) -> bool:
    """torchao's tensors do; torch's own method of this name is for its retired quantized dtypes."""
    return getattr(type(tensor), "dequantize", None) not in (None, Tensor.dequantize)
