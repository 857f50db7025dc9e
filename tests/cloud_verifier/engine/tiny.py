"""Tiny random models of many families, and sessions that drive an engine through step plans by hand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers as hf

from cloud_verifier.core.engine_protocol import IntArray, StepItem
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import item_of
from common.sampling import SamplingParams
from tests.cloud_verifier.engine.families import DEEPSEEK, DELTA, MAMBA, SIZES

VOCAB = 97
SHAPE = {**SIZES, "max_position_embeddings": 128, "bos_token_id": None, "initializer_range": 0.02}
WINDOW = {"sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
EXTRAS: dict[str, dict[str, Any]] = {
    # what differs from SHAPE, by transformers' model type
    "mistral": WINDOW,
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 8},
    "gpt_oss": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": ROPE},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen3_moe": EXPERTS,
    "deepseek_v3": DEEPSEEK,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_5_text": {"num_hidden_layers": 4, "initializer_range": 0.2, **DELTA},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], **MAMBA},
    "llama4_text": {"attention_chunk_size": 8, "intermediate_size_mlp": 48, "num_local_experts": 2},
}
NO_HEAD_DIM = {"gpt2", "opt", "jamba", "phi3"}
"""Families whose configuration derives the size of a head."""


def plain_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random transformers model of `family`, the same one each time."""
    dropped = {"head_dim"} if family in NO_HEAD_DIM else set()
    shape = {name: value for name, value in SHAPE.items() if name not in dropped}
    torch.manual_seed(0)
    return from_config(hf.AutoConfig.for_model(family, **{**shape, **EXTRAS.get(family, {})}), dtype)


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
        slots = ints(self.slots.take(len(above)))
        return item_of(
            above, slots, self.held, tokens=tokens, outputs=outputs, session=self.key, sampling=self.sampling
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
