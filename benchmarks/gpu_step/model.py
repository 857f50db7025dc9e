"""A Llama with random weights whose text does not hang on rounding."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.gpu_step.settings import ModelShape
from cloud_verifier.engine.transformers_adapter import TargetModel

STRIDE = 7919
"""The token after t is t + STRIDE, modulo the vocabulary: a prime, so that texts do not come round soon."""
EMBEDDING_SPREAD = 30.0
"""Of a token's embedding, beside layers that add some 2 to each of its numbers: it is found again at the
end."""


def build(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> TargetModel:
    """The model on `device`. All weights are random and all of it is computed.

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


def successor(token: int, vocab_size: int) -> int:
    """What the model writes after `token`."""
    return (token + STRIDE) % vocab_size


def weight_bytes(model: TargetModel) -> int:
    """Bytes of weights that a step reads: all but the embeddings, of which it reads a row a token."""
    embeddings = cast(Any, model.module).get_input_embeddings().weight
    own = [weight for weight in model.module.parameters() if weight is not embeddings]
    return sum(weight.nbytes for weight in own)


def kv_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values over all layers."""
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
