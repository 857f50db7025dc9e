"""Tiny models with random weights and a tokenizer, written as GGUF with the `gguf` package only.

The architectures are Llama, Mamba (recurrent) and Jamba (hybrid: Mamba layers and one of attention).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

END_OF_TEXT = "<|end_of_text|>"
PADDING = "[PAD0]"
Fields = dict[str, float | int | str]
KINDS = {float: gguf.GGUFValueType.FLOAT32, int: gguf.GGUFValueType.INT32, str: gguf.GGUFValueType.STRING}
MERGES = ("t h", "th e", "a n", "an d")


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the model. `num_vocab` >= 262: the byte alphabet, the merges and two special entries."""

    num_vocab: int = 300
    hidden: int = 64
    feed_forward: int = 96
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    context: int = 1024
    quantised: bool = False  # matrices in Q8_0, else all in f32
    architecture: str = "llama"
    user_defined: tuple[str, ...] = ()  # texts of tokens that stand for fillers
    conv_kernel: int = 4
    state: int = 8  # of each channel of a Mamba layer

    @property
    def head(self) -> int:
        return self.hidden // self.num_heads

    @property
    def inner(self) -> int:
        return 2 * self.hidden

    @property
    def time_step_rank(self) -> int:
        return self.hidden // 8

    @property
    def layers(self) -> list[str]:
        """Kind of each layer; in a hybrid the last is of attention."""
        if self.architecture not in ("mamba", "jamba"):
            return ["attention"] * self.num_layers
        last = "attention" if self.architecture == "jamba" else "mamba"
        return ["mamba"] * (self.num_layers - 1) + [last]


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write what was added, and return the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_gguf(path: Path, shape: TinyShape | None = None, seed: int = 7) -> Path:
    """Write the model; the same seed gives the same file. Its logits spread by some ten nats."""
    shape = shape or TinyShape()
    writer = gguf.GGUFWriter(path, shape.architecture)
    _add_header(writer, shape)
    _add_tokenizer(writer, shape)
    for name, array in _tensors(shape, np.random.default_rng(seed)).items():
        if shape.quantised and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    return finish(writer, path)


def write_copy(path: Path, source: Path, more: Fields | None = None, *, weights: bool = True) -> Path:
    """Write the file `source` with more metadata, or without its weights."""
    reader = gguf.GGUFReader(source)
    fields = dict(reader.fields)
    writer = gguf.GGUFWriter(path, fields.pop("general.architecture").contents())
    for name, found in fields.items():
        if not name.startswith("GGUF."):
            writer.add_key_value(name, found.contents(), *found.types)
    for key, value in (more or {}).items():
        writer.add_key_value(key, value, KINDS[type(value)])
    for tensor in reader.tensors if weights else ():
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return finish(writer, path)


def write_adapter(path: Path, base: Path, scale: float, seed: int = 1) -> Path:
    """Write random low-rank changes of the feed-forward layers of `base`; a scale of 0 changes nothing."""
    reader, rng = gguf.GGUFReader(base), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    for tensor in reader.tensors:
        if tensor.name.endswith("ffn_down.weight"):
            columns, rows = map(int, tensor.shape)
            a, b = rng.standard_normal((2, columns)), scale * rng.standard_normal((rows, 2))
            writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float32))
    return finish(writer, path)


def tiny_tokens(num_vocab: int) -> list[str]:
    """Spelling of each token: bytes, the merges' results, fillers, a control token, a padding entry."""
    tokens = [*_byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    tokens += [f"<filler{number}>" for number in range(num_vocab - len(tokens) - 2)]
    return [*tokens, END_OF_TEXT, PADDING]


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins of the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {byte: chr(byte) for byte in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [stand_ins[byte] for byte in range(256)]


def _add_tokenizer(writer: gguf.GGUFWriter, shape: TinyShape) -> None:
    num_vocab, own = shape.num_vocab, shape.user_defined
    tokens, first = tiny_tokens(num_vocab), num_vocab - 2 - len(own)
    tokens[first : num_vocab - 2] = own
    types = [gguf.TokenType.NORMAL] * first + [gguf.TokenType.USER_DEFINED] * len(own)
    types += [gguf.TokenType.CONTROL, gguf.TokenType.UNUSED]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_eos_token_id(num_vocab - 2)
    writer.add_add_bos_token(False)


def _add_header(writer: gguf.GGUFWriter, shape: TinyShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.num_layers)
    if shape.architecture == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
    else:
        writer.add_feed_forward_length(shape.feed_forward)
        writer.add_head_count(shape.num_heads)
        writer.add_head_count_kv(
            shape.num_kv_heads
            if "mamba" not in shape.layers
            else [shape.num_kv_heads if layer == "attention" else 0 for layer in shape.layers]
        )
        writer.add_rope_dimension_count(shape.head)
        writer.add_rope_freq_base(10000.0)
    if "mamba" in shape.layers:
        writer.add_ssm_conv_kernel(shape.conv_kernel)
        writer.add_ssm_inner_size(shape.inner)
        writer.add_ssm_state_size(shape.state)
        writer.add_ssm_time_step_rank(shape.time_step_rank)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.num_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if shape.quantised else gguf.LlamaFileType.ALL_F32)


def _tensors(shape: TinyShape, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        values: NDArray[np.float64] = rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return np.asarray(values, np.float32)

    hidden, ones = shape.hidden, np.ones(shape.hidden, np.float32)
    tensors = {"token_embd.weight": matrix(shape.num_vocab, hidden, 8.0), "output_norm.weight": ones}
    tensors["output.weight"] = matrix(shape.num_vocab, hidden, 3.0)
    for layer, kind in enumerate(shape.layers):
        block = {"attn_norm.weight": ones}
        if kind == "attention":
            block |= {
                "attn_q.weight": matrix(hidden, hidden, 2.0),
                "attn_k.weight": matrix(shape.num_kv_heads * shape.head, hidden, 2.0),
                "attn_v.weight": matrix(shape.num_kv_heads * shape.head, hidden, 2.0),
                "attn_output.weight": matrix(hidden, hidden, 2.0),
            }
        else:
            block |= _mamba(shape, matrix)
        if shape.architecture != "mamba":
            block |= {
                "ffn_norm.weight": ones,
                "ffn_gate.weight": matrix(shape.feed_forward, hidden),
                "ffn_up.weight": matrix(shape.feed_forward, hidden),
                "ffn_down.weight": matrix(hidden, shape.feed_forward),
            }
        tensors |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    return tensors


def _mamba(shape: TinyShape, matrix: Callable[..., NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Mamba 1, with the norms of Jamba in a hybrid. States decay by e^-0.1 to e^-1 or so a token."""
    inner, rank, state = shape.inner, shape.time_step_rank, shape.state
    block = {
        "ssm_in.weight": matrix(2 * inner, shape.hidden, 2.0),
        "ssm_conv1d.weight": matrix(inner, shape.conv_kernel, 2.0),
        "ssm_conv1d.bias": np.zeros(inner, np.float32),
        "ssm_x.weight": matrix(rank + 2 * state, inner, 2.0),
        "ssm_dt.weight": matrix(inner, rank),
        "ssm_dt.bias": np.full(inner, -1.0, np.float32),
        "ssm_a": -np.tile(np.linspace(0.1, 1.0, state, dtype=np.float32), (inner, 1)),
        "ssm_d": np.ones(inner, np.float32),
        "ssm_out.weight": matrix(shape.hidden, inner, 2.0),
    }
    if shape.architecture == "jamba":
        sizes = {"dt": rank, "b": state, "c": state}
        block |= {f"ssm_{name}_norm.weight": np.ones(size, np.float32) for name, size in sizes.items()}
    return block
