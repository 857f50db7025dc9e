"""Sets the precision of a target: float32 for a while, and a head with float32 sums.

Widening. The conformance probe asks whether two ways through a model are the same function. In bfloat16
rounding hides small differences. Widened, each weight keeps its value, every product and sum is float32, and
rounding explains a millionth. A decoder layer is widened on entry and restored on exit. So widening
needs memory for one layer, the embeddings and the head in float32, beside the model.

The head. In bfloat16 two best logits are exactly equal in about 4 % of rows of Gaussian logits over 32k
tokens, and rounding alone moves the argmax in 2 %. The products are the model's own; only the sum is not
rounded. A CPU that computes in bfloat16 takes twice as long for a whole step if the head is widened. There
the head computes in bfloat16, and the best tokens of each row again in float32; others keep rounded logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

HALF = (torch.bfloat16, torch.float16)

_PLAIN_KINDS = {"Tensor", "Parameter", "Buffer", "DTensor"}
_PLAIN_DTYPES = {torch.float64, torch.float32, *HALF, torch.int64, torch.bool}
"""What models hold that nobody has quantized: weights and tables, positions, masks."""

_Undo = Callable[[], None]


def can_widen(model: nn.Module) -> bool:
    """Return whether every weight is a plain tensor of floats, or gives its values (`dequantize`)."""
    tensors = [*model.parameters(), *model.buffers()]
    return all(_is_plain(tensor) or _tells_values(tensor) for tensor in tensors)


@contextmanager
def float32_inside(model: nn.Module, num_layers: int) -> Iterator[None]:
    """Let `model` compute in float32 until the block ends. `num_layers` identifies its decoder layers."""
    layers = _decoder_layers(model, num_layers)
    inner = {id(module) for layer in layers for module in layer.modules()}
    with ExitStack() as stack:
        for layer in layers:
            _widen_on_entry(layer, stack)
        stack.callback(_widen([module for module in model.modules() if id(module) not in inner]))
        yield


def _decoder_layers(model: nn.Module, num_layers: int) -> list[nn.Module]:
    """Return the elements of the first list of `num_layers` modules; none if there is no such list."""
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
    """Return the same values in float32."""
    # Ordinary tensors, also in inference mode: one that is divided among processes cannot be made of others.
    with torch.inference_mode(False), torch.no_grad():
        return (tensor if _is_plain(tensor) else tensor.dequantize()).float()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor).__name__ in _PLAIN_KINDS and tensor.dtype in _PLAIN_DTYPES


def _tells_values(tensor: Tensor) -> bool:
    """torchao's tensors do; torch's own method of this name is for its retired quantized dtypes."""
    return getattr(type(tensor), "dequantize", None) not in (None, Tensor.dequantize)


FRONT = 128
"""Logits of a row that are computed again in float32: 3 ms for 9 rows of 896, where all take 80."""

FRONT_ROWS = 16  # rows at a time: 16 x 128 weights of 4,096 in float32 take 32 MiB
PIECE = 8192  # tokens at a time where a whole row is computed again

_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86, of x86, of Arm, as Linux names them


def computes_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this processor multiplies bfloat16; False if the system does not report it."""
    try:
        with cpuinfo.open() as file:
            lines = file.read(2**16).splitlines()  # the first processor's come first
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _BFLOAT16_FLAGS.isdisjoint(flags.split())


def install_fp32_head(head: nn.Module | None) -> None:
    """Make `head` return float32 logits. Only a plain `nn.Linear` changes, no quantized one."""
    if type(head) is not nn.Linear or head.weight.dtype not in (torch.bfloat16, torch.float16):
        return
    kind = _SharedHead if isinstance(head.weight, DTensor) else _Fp32Head
    head.forward = kind(head)  # type: ignore[assignment]  # on the instance; its class is untouched


class _Fp32Head:
    """hidden [..., H] in half precision to logits float32 [..., V]."""

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._wide: Tensor | None = None  # CPU only: the weight in float32, made at the first call
        self._has_front = (
            head.weight.dtype == torch.bfloat16 and head.out_features >= 8 * FRONT and computes_bfloat16()
        )

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
        if weight.dtype == torch.float32:  # the probe widens it for a while (`float32_inside`): keep no copy
            return functional.linear(hidden.float(), weight, wide_bias)
        if hidden.is_cuda:
            flat = hidden.reshape(-1, hidden.shape[-1])
            logits = torch.mm(flat, weight.t(), out_dtype=torch.float32)
            logits = logits.view(*hidden.shape[:-1], weight.shape[0])
            return logits if wide_bias is None else logits + wide_bias
        if self._has_front:
            return _front_in_float32(hidden, weight, bias)
        if self._wide is None:
            self._wide = weight.detach().float()
        return functional.linear(hidden.float(), self._wide, wide_bias)


def _front_in_float32(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits float32 [..., V], of which the best of each row are not rounded to bfloat16."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    rounded = functional.linear(flat, weight, bias)
    logits = rounded.float()
    for at in range(0, len(flat), FRONT_ROWS):
        rows = slice(at, at + FRONT_ROWS)
        _sharpen(logits[rows], rounded[rows], flat[rows].float(), weight, bias)
    return logits.view(*hidden.shape[:-1], weight.shape[0])


def _sharpen(logits: Tensor, rounded: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Write float32 sums over the best of `logits` [R, V]; over all of a row whose best token might be
    another one, since more tokens than the best are as good as equal in bfloat16."""
    last, tokens = rounded.topk(FRONT, dim=1)
    sums = (weight[tokens].float() * hidden.unsqueeze(1)).sum(dim=2)  # each row's bits are its own
    if bias is not None:
        sums += bias[tokens].float()
    logits.scatter_(1, tokens, sums)
    lowest = last[:, -1].float()
    doubt = torch.finfo(weight.dtype).eps * lowest.abs()  # twice what rounding to nearest explains
    flat = (~(sums.amax(dim=1) > lowest + doubt)).nonzero().squeeze(1)
    if len(flat):
        for at in range(0, weight.shape[0], PIECE):
            part = slice(at, at + PIECE)
            own = None if bias is None else bias[part].float()
            logits[flat, part] = functional.linear(hidden[flat], weight[part].float(), own)


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


def weight_bytes(model: nn.Module) -> int:
    """Return the memory of all parameters, with those shared by two modules counted once."""
    return sum(_stored_bytes(tensor) for tensor in model.parameters())


def _stored_bytes(tensor: Tensor) -> int:
    """Count stored bytes: `nbytes` of a tensor subclass reports the size of its dequantized values."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
        return sum(_stored_bytes(part) for part in parts if isinstance(part, Tensor))
    return tensor.nbytes
