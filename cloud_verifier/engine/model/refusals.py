"""Refuses unsupported models by their configuration, before their weights are read.

Several of these models would fail silently: they compute logits, and the logits are wrong. Faults that no
configuration shows are left to the conformance probe (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from common.errors import UserError

STATE_LAYERS = frozenset({"linear_attention", "conv", "mamba", "hybrid"})
"""Layer kinds that keep a state in place of K and V, or beside them."""

NO_MEMORY_LAYERS = frozenset({"mlp", "moe"})
"""Layer kinds that see one token alone."""

SERVED_LAYERS = frozenset(
    {"full_attention", "sliding_attention", "attention", *STATE_LAYERS, *NO_MEMORY_LAYERS}
)
"""Layer kinds whose memory is K and V per token, or a state."""

BATCH_WIDE_ROPE = frozenset({"dynamic", "longrope"})
"""RoPE kinds that choose frequencies by the longest position in the batch, so sessions change each other."""


def refuse_config(name: str, config: Any) -> None:
    """Raise `UserError` with the reason if `config`, a transformers configuration, cannot be served."""
    if getattr(config, "is_encoder_decoder", False):
        raise Refusal(
            name, "it is an encoder-decoder model; the verifier serves decoder-only language models"
        )
    text = config.get_text_config(decoder=True)
    strange = sorted(layer_kinds(text) - SERVED_LAYERS)
    if strange:
        raise Refusal(name, f"it has layers of kind {', '.join(strange)}, which are not served")
    batch_wide = sorted(BATCH_WIDE_ROPE.intersection(_rope_types(getattr(text, "rope_parameters", None))))
    if batch_wide:
        raise Refusal(
            name,
            f"its RoPE is of type {batch_wide[0]}, by which the longest session changes all others",
        )


def layer_kinds(text: Any) -> set[str]:
    """Return the kinds of layers that a text model's configuration names."""
    return {*(getattr(text, "layer_types", None) or ()), *(getattr(text, "layers_block_type", None) or ())}


def refuse_architecture(name: str, model: Any, state_layers: Collection[int]) -> None:
    """Raise `UserError` if `model` (a transformers model) has states and none of its layers keeps them in
    transformers' cache (`state_layers`)."""
    if getattr(model, "_is_stateful", False) and not state_layers:
        raise Refusal(
            name, "its layers carry recurrent state, which cannot be shared or rolled back by token"
        )


def refuse_division(name: str, config: Any, num_processes: int) -> None:
    """Raise `Refusal` if a model of this configuration cannot be divided among so many processes."""
    text = config.get_text_config(decoder=True)
    if layer_kinds(text) & STATE_LAYERS:
        raise Refusal(name, "layers with a state are not divided among processes (--tensor-parallel)")
    plan: Mapping[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    if not plan:
        raise Refusal(name, "transformers has no plan for dividing it among processes (--tensor-parallel)")
    layers = text.per_layer_config if getattr(text, "is_heterogeneous", False) else (text,)
    for layer in layers:
        heads = layer.num_attention_heads
        kv_heads = getattr(layer, "num_key_value_heads", None) or heads
        for projection, count, kind in (("q_proj", heads, "attention"), ("k_proj", kv_heads, "KV")):
            divided = any(
                key.endswith(f".{projection}") and style == "colwise" for key, style in plan.items()
            )
            if divided and count % num_processes:
                raise Refusal(name, f"{num_processes} processes cannot share its {count} {kind} heads evenly")


class Refusal(UserError):
    """Reports a model that cannot be served; `reason` is a clause without the model's name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model '{name}' cannot be served: {reason}. Choose another target model.")
        self.reason = reason


def _rope_types(parameters: object) -> Iterator[str]:
    """Yield every `rope_type` in RoPE parameters, which hold one set, or one set per layer kind."""
    if not isinstance(parameters, Mapping):
        return
    for key, value in parameters.items():
        if key in ("rope_type", "type") and isinstance(value, str):
            yield value
        else:
            yield from _rope_types(value)
