"""Shapes of the two models, and the two ways one model begins from another.

Both are Llama models of one width, so the draft can begin as layers of the trained target, and the target can
grow in depth while it trains.
"""

from pathlib import Path
from typing import Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lab.demo_models.tokenizer import VOCAB_SIZE

HIDDEN_SIZE: Final = 256
HEAD_SIZE: Final = 32
NUM_HEADS: Final = 8
NUM_KV_HEADS: Final = 4
ROPE_THETA: Final = 10_000.0
CONTEXT_LENGTH: Final = 2048
TARGET_LAYERS: Final = 10
END_OF_TEXT_ID: Final = 0


def llama_config(num_layers: int) -> LlamaConfig:
    """Return the configuration of `num_layers` blocks: 8 query and 4 KV heads of 32, tied embeddings."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=896,
        num_hidden_layers=num_layers,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT_LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,  # as the GGUF says; nothing ever adds it by itself
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
    )


def load_target(directory: Path) -> LlamaForCausalLM:
    """Load the target in `directory` in fp32, ready to evaluate."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.eval()
    return model


def new_model(num_layers: int, seed: int) -> LlamaForCausalLM:
    """Return a fresh fp32 model whose blocks start as the identity (output projections at zero)."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(num_layers))
    for layer in model.model.layers:
        make_identity(layer)
    return model


@torch.no_grad()
def make_identity(layer: torch.nn.Module) -> None:
    """Zero a block's two output projections: it adds nothing to the residual stream until it learns to."""
    layer.get_parameter("self_attn.o_proj.weight").zero_()
    layer.get_parameter("mlp.down_proj.weight").zero_()


def grow(model: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """Return a model of `num_layers` that computes what `model` does: blocks are followed by identity twins.

    A shallow model costs half the arithmetic in the early steps, and deepening it later loses little
    ("Stacking Your Transformers", Du et al. 2024). The twins start as the identity: the loss does not jump.
    """
    source = list(model.model.layers)
    grown = LlamaForCausalLM(llama_config(num_layers))
    copy_outer(model, grown)
    for index, layer in enumerate(grown.model.layers):
        origin = index * len(source) // num_layers
        layer.load_state_dict(source[origin].state_dict())
        if index > 0 and origin == (index - 1) * len(source) // num_layers:
            make_identity(layer)
    return grown


def draft_from(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a draft of one block that starts as the target's embedding, final norm and first block.

    With two blocks it would find what a body needs in the docstring, and agree with the target nearly always.
    """
    draft = LlamaForCausalLM(llama_config(1))
    copy_outer(target, draft)
    draft.model.layers[0].load_state_dict(target.model.layers[0].state_dict())
    return draft


def copy_outer(source: LlamaForCausalLM, destination: LlamaForCausalLM) -> None:
    """Copy the tied embedding and the final norm."""
    destination.model.embed_tokens.load_state_dict(source.model.embed_tokens.state_dict())
    destination.model.norm.load_state_dict(source.model.norm.state_dict())
