"""Defines the attention function that the model calls in every layer, and the protocol of its backends.

The model hands over one packed batch of rows [1, H, T, D]. The current step holds each row's session,
visible rows and KV slots. The engine sets that step around the forward: some models drop
unknown keyword arguments before the attention layer, so the step cannot travel as one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cloud_verifier.engine.attention.attention_units import Cuts
from cloud_verifier.engine.packing import PackedStep
from common.errors import CapacityError, LocalError, UserError


@dataclass(frozen=True, slots=True)
class AttentionTerms:
    """Holds the terms that one layer's attention needs beyond softmax(q k^T)."""

    scaling: float  # factor on q k^T
    window: int | None = None  # a row sees positions p with row - window < p; None = all
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [Hq] logits that take part in the softmax and have no value


class StepAttention(ABC):
    """Computes one step's attention: prepared once, called by every layer."""

    @abstractmethod
    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        """Compute attention of the packed rows over their prefix, their ancestors and themselves.

        `query` is [1, Hq, T, Dk], rotary applied; `kv` already holds the step's own rows.
        Returns [1, T, Hq, Dv].
        """


class AttentionBackend(ABC):
    """Computes attention over slots; `torch_ref` is the reference."""

    rows_per_read: int = 1  # as in `TargetInfo`
    cuts: Cuts | None = None  # of a kernel that cuts steps into units
    leads: bool = False  # it announces each step to other ranks

    @abstractmethod
    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        """Build what all layers of this step share: index tensors, masks."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """Holds the step that the model is computing at this moment."""

    kv: KVStore
    slots: Tensor  # int64 [T] where the rows' KV is written
    attention: StepAttention


_current: ContextVar[StepContext | None] = ContextVar("forerun_step", default=None)


@contextmanager
def current_step(context: StepContext) -> Iterator[None]:
    """Make `context` the step that `attention_function` serves, in this thread, until the block ends."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def running_step() -> StepContext | None:
    """Return the step that the model is computing in this thread; None outside one."""
    return _current.get()


def attention_function(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store K and V, then attend over the slots; transformers' `AttentionInterface` calls this function.

    Shapes: query [1, Hq, T, Dk], key [1, Hkv, T, Dk], value [1, Hkv, T, Dv], KV heads not repeated.
    Returns [1, T, Hq, Dv] and no weights. Raises `LocalError` outside a step, and `UserError` with the
    reason for a model whose attention has terms that slots cannot express.
    """
    if attention_mask is not None or position_bias is not None:
        raise UserError("it brings an attention mask or position bias of its own, which slots cannot express")
    if scaling is None:
        scaling = float(query.shape[-1]) ** -0.5
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UserError(
            f"its {type(module).__name__} has no layer number, so layers cannot keep their own KV"
        )
    context = _current.get()
    if context is None:
        raise LocalError("the model was called outside an engine step")
    kv = context.kv.write(layer, context.slots, key, value)
    terms = AttentionTerms(scaling, sliding_window, softcap, s_aux)
    return context.attention.attend(query, kv, terms), None


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Holds one layer's KV. Page size 1: a slot is one token's keys and values over all KV heads.

    Keys and values lie side by side, so that a gather of both is one pass over memory.
    """

    rows: Tensor  # [num_slots, Hkv, Dk + Dv]
    keys: Tensor  # [num_slots, Hkv, Dk], a view of rows
    values: Tensor  # [num_slots, Hkv, Dv], a view of rows

    @property
    def key_depth(self) -> int:
        """Return Dk, the offset in a row where the values begin."""
        return self.keys.shape[2]


class KVStore:
    """Holds the slots of all layers; a layer's slots are allocated when the layer first writes.

    Shapes, dtype and device are those of the first call, so the store reads nothing from a model's
    configuration. Head sizes per layer, expanded latent attention and sharded heads all fit.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.layers: dict[int, LayerKV] = {}  # those that have written
        self.features: Tensor | None = None  # [num_slots, F], if a drafter reads features of the target

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of one slot over all that has been written."""
        held = [kv.rows for kv in self.layers.values()]
        held += [] if self.features is None else [self.features]
        return sum(rows[0].nbytes for rows in held)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> LayerKV:
        """Store `key` [1, Hkv, T, Dk] and `value` [1, Hkv, T, Dv] at `slots` int64 [T].

        Returns the layer's store. Raises `CapacityError` if the device has no memory for this layer's slots.
        """
        kv = self.layers.get(layer)
        if kv is None:
            kv = self.layers[layer] = self._allocate(key, value.shape[3])
        kv.keys.index_copy_(0, slots, key[0].transpose(0, 1))
        kv.values.index_copy_(0, slots, value[0].transpose(0, 1))
        return kv

    def write_features(self, slots: Tensor, features: Tensor) -> None:
        """Store `features` [T, F] at `slots` int64 [T], for a drafter. Raises as `write`."""
        if self.features is None:
            self.features = self._zeros((features.shape[1],), features)
        self.features.index_copy_(0, slots, features)

    def _allocate(self, key: Tensor, value_depth: int) -> LayerKV:
        _, heads, _, depth = key.shape
        rows = self._zeros((heads, depth + value_depth), key)
        return LayerKV(rows, rows[..., :depth], rows[..., depth:])

    def _zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Allocate zeros, not empty memory: a masked key still enters a product, and 0 * NaN is NaN."""
        try:
            return torch.zeros((self.num_slots, *shape), dtype=like.dtype, device=like.device)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"no memory on {like.device} for {self.num_slots} KV slots; configure fewer slots"
            ) from error
