"""A target of the demo pair's vocabulary that is small enough for a step of a millisecond."""

from __future__ import annotations

import shutil
from pathlib import Path

import demo_models

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def small_target(folder: Path) -> str:
    """Writes it, with random weights, the same in every call. Needs torch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=3072,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    path = folder / "small"
    LlamaForCausalLM(config).save_pretrained(path)
    for name in TOKENIZER:
        shutil.copy(demo_models.TARGET_DIR / name, path / name)
    return str(path)
