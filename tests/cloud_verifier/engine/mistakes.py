"""Attention backends and models that each make one classic mistake."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepItem
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV, StepAttention
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.packing import PackedStep

TERMS: dict[str, Callable[[AttentionTerms], AttentionTerms]] = {
    "no window": lambda terms: replace(terms, window=None),
    "one too many in the window": lambda terms: replace(terms, window=terms.window and terms.window + 1),
    "one too few in the window": lambda terms: replace(terms, window=terms.window and terms.window - 1),
    "other scaling": lambda terms: replace(terms, scaling=1.5 * terms.scaling),
    "no softcap": lambda terms: replace(terms, softcap=None),
    "no sinks": lambda terms: replace(terms, sinks=None),
}
"""Mistakes in what a layer asks for."""


def _leak(items: list[StepItem]) -> list[StepItem]:
    """A session also sees a slot of the one before it."""
    donor = items[0].slots[:1]
    return [
        items[0],
        *(replace(item, prefix_slots=np.concatenate((donor, item.prefix_slots))) for item in items[1:]),
    ]


ITEMS: dict[str, Callable[[list[StepItem]], list[StepItem]]] = {
    "leak": _leak,
    "tree as chain": lambda items: [
        replace(item, parents=np.arange(-1, len(item.tokens) - 1, dtype=np.int32)) for item in items
    ],
    "blind to ancestors": lambda items: [
        replace(item, parents=np.full_like(item.parents, -1)) for item in items
    ],
    "lost slot": lambda items: [replace(item, prefix_slots=item.prefix_slots[1:]) for item in items],
}
"""Mistakes in who sees whom."""


def _as_they_are(items: list[StepItem]) -> list[StepItem]:
    return items


def _as_asked(terms: AttentionTerms) -> AttentionTerms:
    return terms


class Mistaken(AttentionBackend):
    """The reference backend with one mistake."""

    def __init__(self, kind: str) -> None:
        self._items = ITEMS.get(kind, _as_they_are)
        self._terms = TERMS.get(kind, _as_asked)

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        spoilt = replace(step, items=tuple(self._items(list(step.items))))
        return _MistakenStep(TorchRefBackend().prepare(spoilt, device), self._terms)


class _MistakenStep(StepAttention):
    def __init__(self, inner: StepAttention, spoil: Callable[[AttentionTerms], AttentionTerms]) -> None:
        self._inner = inner
        self._spoil = spoil

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        return self._inner.attend(query, kv, self._spoil(terms))


class Nothing(AttentionBackend, StepAttention):
    """A backend that gives no numbers."""

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        return self

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        return torch.full_like(query.transpose(1, 2), float("nan"))


class OnlyInHalf(AttentionBackend):
    """Right in float32, and with a mistake in half precision, as a kernel compiled for each may be."""

    def __init__(self, kind: str) -> None:
        self._right, self._wrong = TorchRefBackend(), Mistaken(kind)

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        return _OnlyInHalfStep(self._right.prepare(step, device), self._wrong.prepare(step, device))


class _OnlyInHalfStep(StepAttention):
    def __init__(self, right: StepAttention, wrong: StepAttention) -> None:
        self._right, self._wrong = right, wrong

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        chosen = self._right if query.dtype == torch.float32 else self._wrong
        return chosen.attend(query, kv, terms)


def mix_neighbours(module: torch.nn.Module, share: float) -> None:
    """Let each row that enters `module` take a share of the row before it, whoever's that is."""

    def mixed(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = inputs[0]
        return (hidden + share * torch.nn.functional.pad(hidden[:, :-1], (0, 0, 1, 0)), *inputs[1:])

    module.register_forward_pre_hook(mixed)


def shift_windows(model: Any, by: int) -> None:
    """Let the sliding layers of a Gemma 3 ask for a window other than the one its masks are made of."""
    for layer in model.model.layers:
        if layer.self_attn.sliding_window is not None:
            layer.self_attn.sliding_window += by
