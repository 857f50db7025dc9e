"""Tiny random models of many families, and sessions that drive an engine through step plans by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers as hf

from cloud_verifier.core.target import IntArray, StepItem
from cloud_verifier.engine.transformers_adapter import TargetModel
from common.sampling import SamplingParams

VOCAB = 97
WINDOW = 8
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXTRAS: dict[str, tuple[str, dict[str, Any]]] = {
    # family: configuration class, what differs from SHAPE
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": WINDOW, "query_pre_attn_scalar": 8}),
    "gpt_oss": (
        "GptOssConfig",
        {
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": ROPE,
        },
    ),
    "phi3": ("Phi3Config", {}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "stablelm": ("StableLmConfig", {}),  # drops keyword arguments before its attention
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "mamba": ("MambaConfig", {}),
    "jamba": ("JambaConfig", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}),
    "llama4": (
        "Llama4TextConfig",
        {"attention_chunk_size": 8, "intermediate_size_mlp": 48, "num_local_experts": 2},
    ),
    "falcon_alibi": ("FalconConfig", {"alibi": True}),
    "diffllama": ("DiffLlamaConfig", {}),
    "doge": ("DogeConfig", {}),
    "phi3_long": (
        "Phi3Config",
        {"rope_parameters": {**LONGROPE, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}},
    ),
}
OWN_NAMES = {"gpt2": ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")}
NO_HEAD_DIM = {"gpt2", "opt", "mamba", "jamba", "falcon_alibi", "phi3", "phi3_long"}
"""Families whose configuration names a shape differently, or derives the size of a head."""


def plain_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random transformers model of `family`, the same one each time."""
    kind, extras = EXTRAS[family]
    dropped = {*OWN_NAMES.get(family, ()), *({"head_dim"} if family in NO_HEAD_DIM else ())}
    shape = {name: value for name, value in SHAPE.items() if name not in dropped}
    torch.manual_seed(0)
    config = getattr(hf, kind)(**{**shape, **extras})
    return from_config(config, dtype)


def from_config(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A random model of this configuration."""
    return hf.AutoModelForCausalLM.from_config(config, dtype=dtype)


def target(family: str, dtype: torch.dtype = torch.float32) -> TargetModel:
    """The same, with our attention."""
    return TargetModel(family, plain_model(family, dtype))


def plain_greedy(model: TargetModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers alone writes after `prompt`, recomputing everything for each token."""
    tokens = list(prompt)
    with model.plain(), torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model.plain_logits(tokens, 1).argmax()))
    return tokens[len(prompt) :]


@dataclass
class Slots:
    """Slots in shuffled order, as a long-lived verifier would hand them out."""

    num_slots: int
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = np.random.default_rng(7).permutation(self.num_slots).tolist()

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]


@dataclass
class Session:
    """One session's evaluated tokens and their slots."""

    key: int
    slots: Slots
    sampling: SamplingParams = field(default_factory=SamplingParams)
    held: list[int] = field(default_factory=list)

    def item(self, tokens: Sequence[int], parents: Iterable[int], outputs: Sequence[int]) -> StepItem:
        """Rows below the held prefix."""
        above = list(parents)
        depths: list[int] = []
        for parent in above:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return StepItem(
            session=self.key,
            prefix_slots=ints(self.held),
            tokens=ints(tokens),
            positions=ints([len(self.held) + depth for depth in depths]),
            parents=ints(above),
            slots=ints(self.slots.take(len(above))),
            outputs=ints(outputs),
            sampling=self.sampling,
        )

    def chunk(self, tokens: Sequence[int], outputs: Sequence[int] = ()) -> StepItem:
        return self.item(tokens, range(-1, len(tokens) - 1), outputs)

    def keep(self, item: StepItem, rows: Sequence[int]) -> None:
        """Commit `rows`, a path; the slots of the others are free again."""
        kept = item.slots[list(rows)].tolist()
        self.held += kept
        self.slots.free += [slot for slot in item.slots.tolist() if slot not in kept]


def ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int32)
