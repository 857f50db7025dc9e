"""Tiny files of other architectures. llama.cpp itself says which tensors each one has."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from common.llama.gguf_header import _native, _Params
from common.llama.library import library
from tests.edge_client.draft.tiny_gguf import TinyShape, _add_tokenizer, finish

Values = dict[str, float | int | bool | list[int]]

QUANTISED_BLOCK, ROUTER = 32, "ffn_gate_inp"

COMMON: Values = {
    "context_length": 1024, "embedding_length": 64, "feed_forward_length": 96, "block_count": 2,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, "vocab_size": 300,
}  # fmt: skip
EXPERTS: Values = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
LATENT: Values = {
    "attention.head_count_kv": 1, "attention.q_lora_rank": 32, "attention.kv_lora_rank": 32,
    "attention.key_length": 40, "attention.value_length": 32, "attention.key_length_mla": 24,
    "attention.value_length_mla": 16, "rope.dimension_count": 8, "leading_dense_block_count": 1,
    "expert_shared_count": 1,
}  # fmt: skip
ARCHITECTURES: dict[str, Values] = {
    "qwen3moe": EXPERTS,
    "deepseek2": EXPERTS | LATENT,  # latent attention: values are a part of the keys
    "gpt-oss": EXPERTS | {"attention.sliding_window": 24},  # and attention sinks
    "gemma2": {
        "attention.sliding_window": 24,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "llama4": EXPERTS | {"block_count": 4, "interleave_moe_layer_step": 2},  # windows in chunks
    "qwen2vl": {"rope.dimension_sections": [2, 2, 2, 2]},  # four positions a token
    "openelm": {  # heads of each layer
        "attention.head_count": [4, 8],
        "attention.head_count_kv": [1, 2],
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_count": 16,
        "feed_forward_length": [96, 64],
    },
    "cogvlm": {},  # llama.cpp returns the first rows' logits in place of those asked for
    "grok": EXPERTS,  # llama.cpp has no flash attention for it
    "minimax-m3": EXPERTS  # keys chosen by an index
    | {
        "attention.head_count": 2,
        "rope.dimension_count": 16,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 32,
        "attention.indexer.top_k": 24,
        "attention.indexer.block_size": 4,
        "attention.indexer.local_blocks": 1,
    },
}


def write_architecture(
    path: Path, architecture: str, *, quantised: bool = False, tiled_experts: bool = False
) -> Path:
    """Write a model with random weights, in Q8_0 or f32; the same call gives the same file. `tiled_experts`
    are in Q4_K and zero, since the `gguf` package does not quantise so."""
    values = {**COMMON, **ARCHITECTURES[architecture]}
    if tiled_experts:
        values |= {"embedding_length": 256, "expert_feed_forward_length": 256}
    write_header(path, architecture, values)
    random = np.random.default_rng(7)
    tensors = {name: _random(name, shape, random) for name, shape in _wanted(path).items()}
    kind, tiled = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_K
    writer = _header(path, architecture, values)
    for name, array in tensors.items():
        whole = array.shape[-1] % QUANTISED_BLOCK == 0
        if tiled_experts and "_exps" in name and array.ndim == 3:
            zeros = np.zeros(gguf.quants.quant_shape_to_byte_shape(array.shape, tiled), np.uint8)
            writer.add_tensor(name, zeros, raw_dtype=tiled)
        elif quantised and array.ndim > 1 and whole and name.endswith("weight") and ROUTER not in name:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    return finish(writer, path)


def write_header(path: Path, architecture: str, more: Mapping[str, Any]) -> Path:
    """Write a file without tensors."""
    return finish(_header(path, architecture, {**COMMON, **more}), path)


def _header(path: Path, architecture: str, values: Values) -> gguf.GGUFWriter:
    writer, kinds = gguf.GGUFWriter(path, architecture), gguf.GGUFValueType
    _add_tokenizer(writer, TinyShape())
    for key, value in values.items():
        kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, list: kinds.ARRAY}[type(value)]
        own = kinds.UINT32 if kind == kinds.ARRAY else None
        writer.add_key_value(f"{architecture}.{key}", value, kind, own)
    return writer


def _wanted(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that llama.cpp asks for when it makes a model of this metadata."""
    bindings, native, wanted = library(), _native(), dict[str, tuple[int, ...]]()
    native.ggml_get_name.restype, native.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    after_type_and_buffer = 2 * ctypes.sizeof(ctypes.c_void_p)  # ggml_tensor

    def note(tensor: int, _: Any) -> None:
        sizes = list((ctypes.c_int64 * 4).from_address(tensor + after_type_and_buffer))
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        wanted[native.ggml_get_name(tensor).decode()] = tuple(sizes[::-1])

    metadata = native.gguf_init_from_file(str(path).encode(), _Params(True, None))
    callback = bindings.llama_model_set_tensor_data_t(note)
    model = bindings.llama_model_init_from_user(
        metadata, callback, None, bindings.llama_model_default_params()
    )
    assert model, "a value of the metadata is missing"
    bindings.llama_model_free(model)
    native.gguf_free(metadata)
    return wanted


def _random(name: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    if "norm" in name:
        return np.ones(shape, np.float32)
    gains = {"token_embd": 8.0, "output.": 3.0, "attn_": 2.0, "ffn_gate_inp": 4.0}
    gain = next((gain for part, gain in gains.items() if part in name), 1.0)
    scale = gain / np.sqrt(shape[-1]) if len(shape) > 1 else 0.1
    return np.asarray(random.standard_normal(shape) * scale, np.float32)
