"""Defines the measurements, on a GPU and in miniature, and a random Llama that rounding does not sway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cloud_verifier.engine.model.transformers_adapter import TargetModel

STRIDE = 7919
"""The token after t is t + STRIDE, modulo the vocabulary: a prime, so that texts do not come round soon."""
EMBEDDING_SPREAD = 30.0
"""Of a token's embedding, beside layers that add some 2 to each of its numbers: it is found again at the
end."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Describes a Llama's shape."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Load:
    """Describes a step: so many sessions with so many nodes each, below contexts of so many tokens."""

    sessions: int
    nodes: int
    context: int
    bound: float | None = None  # times the floor that a step may take at most; what the project aims at

    def __str__(self) -> str:
        return f"{self.sessions} x {self.nodes} at {self.context}"


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Holds the settings of a run."""

    shape: ModelShape
    dtype: str  # as torch names it
    check_seeds: int  # random steps for each kind of attention
    check_steps: int  # of a tiny model, by graphs and eagerly
    copied_bytes: int  # of the bandwidth's buffer
    loads: tuple[Load, ...]
    repeats: int  # timed runs of each kind, after `warm_up` others
    warm_up: int
    rate_sessions: tuple[int, ...]
    acceptances: tuple[float, ...]
    prompt_tokens: int
    text_tokens: int
    draft_nodes: int  # that an oracle keeps below the tip
    prefill_chunk: int
    served_prompt: int  # tokens of the prompts that reach a real verifier
    served_tokens: int


FULL = GpuSettings(
    shape=ModelShape(128256, 4096, 14336, 32, 32, 8, 128), dtype="bfloat16",
    check_seeds=3, check_steps=30, copied_bytes=4 << 30,
    loads=(
        Load(1, 1, 2048), Load(1, 8, 2048, bound=1.5), Load(8, 8, 2048),
        Load(32, 1, 2048), Load(32, 8, 2048, bound=1.4),
    ),
    repeats=40, warm_up=5, rate_sessions=(1, 8, 32, 128), acceptances=(0.6, 0.8),
    prompt_tokens=1024, text_tokens=160, draft_nodes=7, prefill_chunk=2048,
    served_prompt=2000, served_tokens=64,
)  # fmt: skip

TINY = GpuSettings(
    shape=ModelShape(64, 32, 48, 1, 2, 1, 16), dtype="float32",
    check_seeds=1, check_steps=3, copied_bytes=4 << 20, loads=(Load(1, 2, 9, bound=1.5),),
    repeats=1, warm_up=2, rate_sessions=(1, 3), acceptances=(0.6,),
    prompt_tokens=12, text_tokens=10, draft_nodes=3, prefill_chunk=64,
    served_prompt=300, served_tokens=12,
)  # fmt: skip


# The model --------------------------------------------------------------------------------------------------


def build(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> TargetModel:
    """Build the model on `device`. All weights are random and all of it is computed.

    Two best logits of random weights lie so close that bfloat16's rounding often turns them, and then a
    text decoded in another batch is another text. So the head finds the embedding again, of the token
    STRIDE further: the logits' best is ahead of all others by far, whatever the layers add.
    """
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), torch.no_grad():
            model = LlamaForCausalLM(_config(shape))
            _find_embeddings_again(model)
    finally:
        torch.set_default_dtype(before)
    return TargetModel(f"random Llama of {_billions(model)}", model)


def weights_of(model: TargetModel) -> list[torch.Tensor]:
    """Return the weights that a step reads: all but the embeddings, read one row a token."""
    embeddings = cast(Any, model.module).get_input_embeddings().weight
    return [weight for weight in model.module.parameters() if weight is not embeddings]


def kv_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values over all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize


def _config(shape: ModelShape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def _find_embeddings_again(model: LlamaForCausalLM) -> None:
    embeddings = cast(torch.nn.Embedding, model.get_input_embeddings()).weight
    head = cast(torch.nn.Linear, model.get_output_embeddings()).weight
    embeddings.normal_(0.0, 1.0)
    head.copy_(embeddings.roll(STRIDE, dims=0))  # row t + STRIDE of the head is token t's embedding
    head.mul_(0.02)
    embeddings.mul_(EMBEDDING_SPREAD)


def _billions(model: LlamaForCausalLM) -> str:
    return f"{sum(weight.numel() for weight in model.parameters()) / 1e9:.2g}B parameters"
