"""The attention function that the model calls in every layer, and what a backend behind it must do.

The model hands over one packed batch of rows [1, H, T, D]. Which session a row belongs to, what it sees and
where its KV lives comes from the current step, which the engine sets around the forward: some models drop
unknown keyword arguments before the attention layer, so it cannot travel as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from cloud_verifier.engine.kv import KVStore, LayerKV
from cloud_verifier.engine.packing import PackedStep
from common.errors import LocalError, UserError


@dataclass(frozen=True, slots=True)
class AttentionTerms:
    """What one layer's attention asks for beyond softmax(q k^T)."""

    scaling: float  # factor on q k^T
    window: int | None = None  # a row sees positions p with row - window < p; None = all
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [Hq] logits that take part in the softmax and have no value


class StepAttention(Protocol):
    """One step's attention, prepared once and called by every layer."""

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        """Attention of the packed rows over their prefix, their ancestors and themselves.

        `query` is [1, Hq, T, Dk], rotary applied; `kv` already holds the step's own rows.
        Returns [1, T, Hq, Dv].
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention over slots; `torch_ref` is the reference."""

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        """Build what all layers of this step share: index tensors, masks."""
        ...


@dataclass(frozen=True, slots=True)
class StepContext:
    """The step that the model is computing at this moment."""

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
    """What transformers' `AttentionInterface` calls: stores K and V, then attends over the slots.

    Shapes: query [1, Hq, T, Dk], key [1, Hkv, T, Dk], value [1, Hkv, T, Dv], KV heads not repeated.
    Returns [1, T, Hq, Dv] and no weights. Raises `LocalError` outside a step, and `UserError` with the
    reason for a model whose attention has terms that slots cannot express.
    """
    context = _current.get()
    if context is None:
        raise LocalError("the model was called outside an engine step")
    if attention_mask is not None or position_bias is not None:
        raise UserError("it brings an attention mask or position bias of its own, which slots cannot express")
    if scaling is None:
        scaling = float(query.shape[-1]) ** -0.5
    kv = context.kv.write(_layer_of(module), context.slots, key, value)
    terms = AttentionTerms(scaling, sliding_window, softcap, s_aux)
    return context.attention.attend(query, kv, terms), None


def _layer_of(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UserError(
            f"its {type(module).__name__} does not tell its layer number, so KV cannot be kept apart"
        )
    return layer
