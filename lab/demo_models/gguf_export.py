"""Write the pair's models as GGUF, and read a GGUF file back into a torch Llama model.

    python -m lab.demo_models.gguf_export build/target-q8_0.gguf     # the target, for `forerun verify`

Reading back gives the draft as it ships (dequantised Q8_0), which the evaluation measures and the parity test
exports once more, in f32.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lab.demo_models import TARGET_DIR
from lab.demo_models.architecture import ROPE_THETA, load_target
from lab.demo_models.tokenizer import END_OF_TEXT, LLAMA_CPP_PRE
from training.draft_weights import Relation
from training.gguf_files import finish

FloatArray = npt.NDArray[np.float32]

BLOCK_TENSORS: Final = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_target(path: Path, *, quantised: bool = True) -> None:
    """Write the bundled target with its chat template to `path`; otherwise as `write_gguf`."""
    template = (TARGET_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    model, tokenizer = load_target(TARGET_DIR), TARGET_DIR / "tokenizer.json"
    write_gguf(model, tokenizer, path, quantised=quantised, chat_template=template)


def write_gguf(
    model: LlamaForCausalLM, tokenizer_json: Path, path: Path, *, quantised: bool, chat_template: str = ""
) -> None:
    """Write `model` with its tokenizer to `path`: matrices in Q8_0 if `quantised`, else everything in f32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    add_header(writer, model.config, quantised=quantised)
    add_tokenizer(writer, json.loads(tokenizer_json.read_text(encoding="utf-8")))
    if chat_template:
        writer.add_chat_template(chat_template)
    for name, array in gguf_tensors(model):
        if quantised and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    finish(writer)


def gguf_tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, FloatArray]]:
    """Yield `(GGUF name, f32 array)` for every tensor, query and key rows in llama.cpp's order.

    The tied output head has no tensor of its own.
    """
    weights = model.state_dict()
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    config = model.config
    assert config.num_key_value_heads is not None, "set by llama_config"
    heads_of = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        names |= {
            f"model.layers.{layer}.{name}": f"blk.{layer}.{short}" for name, short in BLOCK_TENSORS.items()
        }
    for name, short in names.items():
        array: FloatArray = weights[f"{name}.weight"].float().contiguous().numpy()
        relation = Relation(heads_of.get(short.rpartition(".")[2], 0))
        yield f"{short}.weight", relation.to_file(array)


def add_header(writer: gguf.GGUFWriter, config: LlamaConfig, *, quantised: bool) -> None:
    """Write the architecture keys that llama.cpp needs for arch llama."""
    assert config.num_key_value_heads is not None, "set by llama_config"
    assert config.head_dim is not None, "set by llama_config"
    writer.add_name("Forerun demo draft")
    writer.add_license("PSF-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantised else gguf.LlamaFileType.ALL_F32)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """Embed the vocabulary of a parsed tokenizer.json; BOS is off explicitly: no key may mean on."""
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    end_of_text = vocab[END_OF_TEXT]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[end_of_text] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(LLAMA_CPP_PRE)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def read_gguf(path: Path) -> LlamaForCausalLM:
    """Return the fp32 torch model of a GGUF, dequantised."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return model


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.demo_models.gguf_export", description=__doc__)
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--f32", action="store_true", help="all weights in 32 bits, not Q8_0")
    options = parser.parse_args(arguments)
    write_target(options.path, quantised=not options.f32)
    return 0


if __name__ == "__main__":
    sys.exit(main())
