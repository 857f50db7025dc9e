"""Writes the weights of a GGUF file as a folder that the torch engine loads."""

import json
from functools import cache
from pathlib import Path
from unittest.mock import patch

import gguf
import torch
from gguf import TokenType
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def dequantize(file: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write config, tokenizer and safetensors into `folder`, which is returned."""
    source, name = str(file.parent), file.name
    # transformers reads the file three times, and builds the map of names anew for each tensor.
    with (
        patch("gguf.GGUFReader", cache(gguf.GGUFReader)),
        patch("gguf.get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {key: value.contiguous() for key, value in model.state_dict().items() if key not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    del model.config.quantization_config
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _leave_out_padding(file, folder / "tokenizer.json")
    return folder


def _leave_out_padding(file: Path, saved: Path) -> None:
    """Remove entries that only fill the file's table. A published tokenizer ends before them."""
    kinds = gguf.GGUFReader(file).fields["tokenizer.ggml.token_type"].contents()
    tokenizer = json.loads(saved.read_text("utf-8"))
    words = tokenizer["model"]["vocab"].items()
    tokenizer["model"]["vocab"] = {word: token for word, token in words if kinds[token] != TokenType.UNUSED}
    saved.write_text(json.dumps(tokenizer), "utf-8")
