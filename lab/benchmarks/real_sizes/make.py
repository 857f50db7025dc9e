"""Makes the pair: a target folder, and drafts of the same weights in the usual formats.

The weights are random and seeded. The tokenizer is a byte-level BPE that is trained on Python's standard
library. Nothing is downloaded. A complete folder is used again.

Scales: each half of a layer adds a fixed share of the residual stream, so the stream grows from layer to
layer and the current token's own embedding does not decide the tied head's choice. The last norm gives the
logits their spread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from common.errors import LocalError
from common.llama.library import library
from lab.benchmarks.real_sizes.pair import FORMATS, Pair, Shape, recipe_of
from lab.demo_models.corpus import library_root, read_source
from lab.demo_models.tokenizer import LLAMA_CPP_PRE, QWEN2_SPLIT

NUM_SPECIAL = 22
TEXT_PER_TOKEN = 250
"""Characters of source that train each token of the vocabulary; the largest takes the whole library."""

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SPREAD = 5.2  # standard deviation of the logits
EMBEDDING = 0.02  # standard deviation of an embedding's entries
GROWTH = 3.0  # of the residual stream over all layers, without the last layer's MLP
LEAP = 15.0  # of the stream in that MLP
SHARPNESS = 1.0  # standard deviation of attention scores before the softmax
NORM_SPREAD = 0.2  # of norm weights around their mean


def make(pair: Pair, shape: Shape, *, threads: int = 2) -> None:
    """Write all files of the pair. Takes a minute or two at 0.5B."""
    pair.recipe.unlink(missing_ok=True)
    pair.target.mkdir(parents=True, exist_ok=True)
    pair.texts.mkdir(exist_ok=True)
    for stale in pair.texts.iterdir():
        stale.unlink()
    tokenizer = _write_tokenizer(pair.target, shape)
    weights = dict(_weights(shape))
    save_file(weights, pair.target / "model.safetensors", metadata={"format": "pt"})
    (pair.target / "config.json").write_text(json.dumps(_config(shape), indent=1) + "\n")
    _write_gguf(pair.draft("bf16"), shape, weights, tokenizer)
    del weights
    for kind, number in FORMATS.items():
        _quantize(pair.draft("bf16"), pair.draft(kind), number, threads)
    pair.recipe.write_text(recipe_of(shape))


# The tokenizer ----------------------------------------------------------------------------------------------


def _write_tokenizer(folder: Path, shape: Shape) -> dict[str, Any]:
    """Write tokenizer.json and its settings; return the parsed tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=shape.tokens, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(_sources(TEXT_PER_TOKEN * shape.tokens), trainer)
    written = json.loads(tokenizer.to_str())
    _pad(written["model"], shape.tokens)
    tokenizer = Tokenizer.from_str(json.dumps(written))
    special = [END, START, STOP, *(f"<|extra_{number}|>" for number in range(NUM_SPECIAL - 3))]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "eos_token": STOP,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.positions,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    parsed: dict[str, Any] = json.loads(tokenizer.to_str())
    return parsed


def _sources(length: int) -> Iterator[str]:
    """Some `length` characters of the standard library with its tests, without what others installed."""
    for path in sorted(library_root().rglob("*.py")):
        if "site-packages" not in path.parts and length > 0:
            source = read_source(path)
            length -= len(source)
            yield source


def _pad(model: dict[str, Any], count: int) -> None:
    """Add merges of two known tokens until there are `count` tokens. They come last, so they rarely apply."""
    vocab: dict[str, int] = model["vocab"]
    lefts = list(vocab)
    for right in "abcdefghijklmnopqrstuvwxyz":
        for left in lefts:
            if len(vocab) >= count:
                return
            if left.isalpha() and left + right not in vocab:
                vocab[left + right] = len(vocab)
                model["merges"].append([left, right])
    raise LocalError(f"the tokenizer has {len(vocab)} tokens of {count}; please report this")


# The weights ------------------------------------------------------------------------------------------------


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.rows,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "eos_token_id": shape.tokens + 2,
        "bos_token_id": shape.tokens,
        "torch_dtype": "bfloat16",
    }


def _weights(shape: Shape) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor by transformers' name, bfloat16, always the same for a seed."""
    generator = torch.Generator().manual_seed(shape.seed)

    def normal(scale: float, *size: int, mean: float = 0.0) -> torch.Tensor:
        whole = torch.empty(*size, dtype=torch.bfloat16)
        for part in torch.split(whole, 8192):  # in parts: float32 takes twice the memory
            part.copy_(mean + scale * torch.randn(part.shape, generator=generator))
        return whole

    hidden, inner = shape.hidden, shape.intermediate
    wide, narrow = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    rate = GROWTH ** (1 / (2 * shape.layers))
    stream = EMBEDDING  # root mean square of the residual stream
    yield "model.embed_tokens.weight", normal(EMBEDDING, shape.rows, hidden)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        look = math.sqrt(SHARPNESS / hidden)
        for part, rows, scale in (("q", wide, look), ("k", narrow, look), ("v", narrow, hidden**-0.5)):
            yield f"{name}.self_attn.{part}_proj.weight", normal(scale, rows, hidden)
            yield f"{name}.self_attn.{part}_proj.bias", normal(0.1, rows)
        leap = LEAP if layer == shape.layers - 1 else rate
        mixed, gated = 0.6, 0.6  # root mean squares of attention's mean of values and of silu(gate) * up
        yield (
            f"{name}.self_attn.o_proj.weight",
            normal(math.sqrt(rate**2 - 1) * stream / mixed / wide**0.5, hidden, wide),
        )
        stream *= rate
        for part in ("gate", "up"):
            yield f"{name}.mlp.{part}_proj.weight", normal(hidden**-0.5, inner, hidden)
        yield (
            f"{name}.mlp.down_proj.weight",
            normal(math.sqrt(leap**2 - 1) * stream / gated / inner**0.5, hidden, inner),
        )
        stream *= leap
        for norm in ("input", "post_attention"):
            yield f"{name}.{norm}_layernorm.weight", normal(NORM_SPREAD, hidden, mean=1.0)
    last = SPREAD / (EMBEDDING * math.sqrt(hidden))
    yield "model.norm.weight", normal(NORM_SPREAD * last, hidden, mean=last)


# The drafts -------------------------------------------------------------------------------------------------


def _write_gguf(
    path: Path, shape: Shape, weights: dict[str, torch.Tensor], tokenizer: dict[str, Any]
) -> None:
    """Matrices as they are, vectors in float32. Architecture qwen2 wants no row moved."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("Forerun real sizes")
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    _add_tokenizer(writer, shape, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, shape.layers)
    for name, weight in weights.items():
        short = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert short is not None, "gguf knows all parts of this architecture"
        if weight.ndim == 1:
            writer.add_tensor(short, weight.float().numpy())
        else:
            raw = weight.view(torch.uint8).numpy()
            writer.add_tensor(short, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, shape: Shape, tokenizer: dict[str, Any]) -> None:
    """The vocabulary; ids beyond it are padding, as converters write it."""
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = [entry["content"] for entry in tokenizer["added_tokens"]]
    words = sorted(vocab, key=vocab.__getitem__) + special
    padding = range(len(words), shape.rows)
    kinds = [gguf.TokenType.NORMAL] * len(vocab) + [gguf.TokenType.CONTROL] * len(special)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(LLAMA_CPP_PRE)
    writer.add_token_list([*words, *(f"[PAD{number}]" for number in padding)])
    writer.add_token_types([*kinds, *(gguf.TokenType.UNUSED for _ in padding)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(shape.tokens)
    writer.add_eos_token_id(shape.tokens + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _quantize(source: Path, path: Path, kind: int, threads: int) -> None:
    llama = library()  # keeps llama.cpp's log to itself
    params = llama.llama_model_quantize_default_params()
    params.ftype = kind
    params.nthread = threads
    code = llama.llama_model_quantize(str(source).encode(), str(path).encode(), params)
    if code:
        raise LocalError(f"llama.cpp could not write {path} (code {code}); is the disk full?")
