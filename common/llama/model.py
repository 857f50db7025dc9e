"""Loads a GGUF file by llama.cpp: its tokens, and its weights if requested."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from common.errors import UserError
from common.grammar import Grammars, Matcher, Tokens
from common.llama.files import find_model
from common.llama.gguf_header import GgufFile
from common.llama.library import extra_bufts_are_safe, library, native_log

FEWEST_SEQUENCES, MOST_SEQUENCES = 64, 192
OUTPUT_LOGITS = 10_000_000
"""Logits that bound the number of sequences (40 MB). llama.cpp reserves a row for every sequence: 192 rows of
151,936 are 111 MiB. A draft with a large vocabulary is too slow for a wide tree anyway."""

STATE_SEQUENCES = 24
"""Sequences of a recurrent or hybrid model. llama.cpp allocates a state for each, which may take tens of MB
(layers x inner width x state size x 4 bytes). Eight seats leave 16 to the nodes of their trees."""

LARGE_CONTEXT, MAX_UBATCH, MIN_UBATCH = 8192, 512, 64
"""Cells up to which llama.cpp computes its default of 512 tokens together, and fewer beyond. Without flash
attention it keeps a score for each token, cell and head, 1.1 GB at 32,768 cells."""

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ, a constant of llama.cpp's build
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS, another one
MAX_NUMBER = 2**31 - 1  # llama.cpp reads a file's sizes as uint32 and returns them as int32


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """Settings of a model and its context. Raises `UserError` with the field and its allowed values."""

    path: str  # a local GGUF file, or hf://organisation/repository/file.gguf
    n_ctx: int = 4096  # KV cells in all: prompt, text and the live tree share them; 0 = as trained
    # One for the committed text, one for each leaf of the tree; 0 = 64 to 192, by the vocabulary.
    n_seq_max: int = 0
    n_batch: int = 512  # tokens per llama_decode while prefilling
    max_rows: int = 32  # rows with logits per step; sizes llama.cpp's output buffers
    threads: int = 0  # 0 = one less than the processors of this process
    adapter: str = ""  # a GGUF file of low-rank changes (LoRA) to the model's weights; empty: none
    gpu_layers: int = 0  # layers on accelerators; -1 = all
    tensor_split: tuple[float, ...] = ()  # shares of the accelerators; empty = by their free memory
    exact: bool = False  # f32 KV, no flash attention: a logit hardly depends on the batch
    batch_invariant: bool = False  # flash attention over bf16 keys: see `LlamaRuntime`

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("the model's path is empty; name a GGUF file or hf://organisation/repo/file.gguf")
        ranges = {
            "n_ctx": (0, 2**31 - 1),
            "n_seq_max": (2 if self.n_seq_max else 0, MAX_SEQUENCES),
            "max_rows": (1, 2**15),
            # Half a batch for rows, half for their ancestors; outputs are reserved for n_seq_max rows.
            "n_batch": (max(2 * self.max_rows, self.n_seq_max), 2**20),
            "threads": (0, 512),
            "gpu_layers": (-1, 2**15),
        }
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise UserError(f"{name} is {getattr(self, name)}; it must lie in [{low}, {high}]")

    def num_sequences(self, num_vocab: int, recurrent: bool = False) -> int:
        """Return the sequences of a context for a vocabulary of `num_vocab` tokens."""
        chosen = min(MOST_SEQUENCES, max(FEWEST_SEQUENCES, OUTPUT_LOGITS // num_vocab))
        if recurrent:
            chosen = STATE_SEQUENCES
        return self.n_seq_max or min(chosen, self.n_batch)

    def num_together(self, num_cells: int) -> int:
        """Return the tokens that llama.cpp computes together in `num_cells` cells."""
        if self.batch_invariant:
            return min(self.n_batch, MAX_UBATCH)  # with flash attention there are no scores to keep
        fitting = max(MIN_UBATCH, MAX_UBATCH * LARGE_CONTEXT // max(num_cells, LARGE_CONTEXT))
        return min(self.n_batch, fitting)


UNKNOWN_ATTRIBUTE = 1 << 0  # LLAMA_TOKEN_ATTR_UNKNOWN
UNUSED_ATTRIBUTE = 1 << 1  # LLAMA_TOKEN_ATTR_UNUSED
CONTROL_ATTRIBUTE = 1 << 3  # LLAMA_TOKEN_ATTR_CONTROL
PADDING = re.compile(rb"\[PAD\d*\]")  # converters' name of entries that round the vocabulary up
LONGEST_VALUE = 256  # bytes of a number in the metadata
WHOLE_NUMBER = re.compile(r"-?[0-9]+")
FIRST_PIECE_BYTES = 64  # longer pieces need a second call


class LlamaVocabulary:
    """Reads tokens' texts and ids from llama.cpp's llama_vocab, while the model is loaded."""

    def __init__(self, library: Any, vocab: Any) -> None:
        self._library = library
        self._vocab = vocab
        self.num_vocab: int = library.llama_vocab_n_tokens(vocab)

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the ids of the file's own end tokens, of a text and of a turn, increasing.

        llama.cpp counts more tokens as ends by their spelling: "</s>" and the paddings and separators of
        code models, which a target writes as text. They end a text only if a file names no end.
        """
        library = self._library
        own = {library.llama_vocab_eos(self._vocab), library.llama_vocab_eot(self._vocab)}
        ends = sorted(token for token in own if token >= 0)
        return tuple(ends or (t for t in range(self.num_vocab) if library.llama_vocab_is_eog(self._vocab, t)))

    @cached_property
    def begin_ids(self) -> tuple[int, ...]:
        """Return the begin token that precedes every text in training; empty without one."""
        token: int = self._library.llama_vocab_bos(self._vocab)
        adds = bool(self._library.llama_vocab_get_add_bos(self._vocab))
        return (token,) if adds and token >= 0 else ()

    @property
    def boundary_texts(self) -> tuple[str, str]:
        """Return the begin token's and the end token's text, each empty without one."""
        library, vocab = self._library, self._vocab
        tokens = library.llama_vocab_bos(vocab), library.llama_vocab_eos(vocab)
        texts = (library.llama_vocab_get_text(vocab, token) if token >= 0 else b"" for token in tokens)
        begin, end = (text.decode("utf-8", "replace") for text in texts)
        return begin, end

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Return the increasing ids of tokens that are not text: control and unknown tokens."""
        special = CONTROL_ATTRIBUTE | UNKNOWN_ATTRIBUTE
        return tuple(token for token in range(self.num_vocab) if self._attributes(token) & special)

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """Return the texts of `special_ids`, as llama.cpp finds them in a text."""
        texts = (self._library.llama_vocab_get_text(self._vocab, token) for token in self.special_ids)
        return tuple(text.decode("utf-8", "replace") for text in texts)

    def pieces(self) -> list[bytes | None]:
        """Return [num_vocab] each token's bytes in a text; None as in `token_table`."""
        return [None if self._entry(token) is None else self.piece(token) for token in range(self.num_vocab)]

    def token_table(self) -> list[bytes | None]:
        """Return [num_vocab] each token's text in the tokenizer file; None if unused or padding."""
        return [self._entry(token) for token in range(self.num_vocab)]

    def grammar_tokens(self) -> Tokens:
        """Return the tokens' bytes, for grammars. Takes tenths of a second for a large vocabulary."""
        return Tokens(self.pieces(), self.special_ids, self.eos_ids, self.num_vocab)

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of `text` without begin and end tokens, which the template adds.

        llama.cpp's time grows by the square of a long text's characters that are spelt in bytes, and with the
        number of special tokens. So a long text is read in a thread.
        """
        data = text.encode("utf-8")
        capacity = len(data) + 16  # a token is a byte at least; some tokenizers add a space
        ids = (ctypes.c_int32 * capacity)()
        count = self._library.llama_tokenize(
            self._vocab, data, len(data), ids, capacity, False, parse_special
        )
        if count < 0:
            raise UserError(f"llama.cpp cannot tokenize {text[:40]!r} with this model's vocabulary")
        return list(ids[:count])

    def piece(self, token: int) -> bytes:
        """Return a token's bytes, also of a control token. Raises `UserError` for an unknown id."""
        if not 0 <= token < self.num_vocab:
            raise UserError(f"token {token} is outside the model's vocabulary of {self.num_vocab}")
        capacity = FIRST_PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            length = self._library.llama_token_to_piece(self._vocab, token, buffer, capacity, 0, True)
            if length >= 0:
                return buffer.raw[:length]
            capacity = -length

    def _entry(self, token: int) -> bytes | None:
        text: bytes = self._library.llama_vocab_get_text(self._vocab, token)
        unused = self._attributes(token) & UNUSED_ATTRIBUTE
        return None if unused or PADDING.fullmatch(text) else text

    def _attributes(self, token: int) -> int:
        attributes: int = self._library.llama_vocab_get_attr(self._vocab, token)
        return attributes


class LlamaGrammars:
    """Compiles grammars over one model's vocabulary; both ends make the same masks.

    It is thread-safe and valid as long as the model. The first grammar reads the vocabulary, which takes
    tenths of a second for a large one. So `check` is called in a thread of its own before a session drafts.
    """

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._grammars: Grammars | None = None

    def check(self, grammar: str) -> None:
        """Compile and keep a grammar. Raises `UserError` if it is refused or llguidance is missing."""
        self.matcher(grammar)

    def matcher(self, grammar: str) -> Matcher:
        """Return a matcher for one text in one thread. Raises as `check` does."""
        with self._lock:
            if self._grammars is None:
                tokens = self._vocabulary.grammar_tokens()
                tokens.tokenizer  # noqa: B018 - made here once, while other threads wait
                self._grammars = Grammars(tokens)
        return self._grammars.matcher(grammar)


class SharedWeights:
    """Loads a model once for all that are open at a time. The last that is closed frees it. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # also held to change the model's list of adapters
        self._model: Any = None
        self._num_users = 0

    def take(self, load: Callable[[], Any]) -> Any:
        """Return the llama_model, which `load` loads if it is not there. Raises as `load` does."""
        with self.lock:
            if not self._num_users:
                self._model = load()
            self._num_users += 1
            return self._model

    def give_back(self, free: Callable[[Any], None]) -> None:
        with self.lock:
            self._num_users -= 1
            if not self._num_users:
                free(self._model)


class LlamaModel(LlamaVocabulary):
    """Loads a model in the constructor and frees it in `close`. Raises `UserError` with advice.

    Without `weights` it reads only the tokens, of any architecture. Models of one file may be `shared`.
    """

    def __init__(
        self, settings: LlamaSettings, *, weights: bool = True, shared: SharedWeights | None = None
    ) -> None:
        self.settings = settings
        self._library = library()
        native_log().errors.clear()
        self.path = find_model(settings.path)  # the local file
        self.system_info: str = self._library.llama_print_system_info().decode()  # instruction sets
        self._shared = shared or SharedWeights()
        self._model: Any = self._shared.take(lambda: self._load(weights))
        super().__init__(self._library, self._library.llama_model_get_vocab(self._model))
        self.is_recurrent = any(
            question(self._model)
            for question in (self._library.llama_model_is_recurrent, self._library.llama_model_is_hybrid)
        )
        self.grammars = LlamaGrammars(self)

    def _load(self, weights: bool) -> Any:
        params = self._library.llama_model_default_params()
        params.n_gpu_layers = self.settings.gpu_layers
        params.use_extra_bufts = extra_bufts_are_safe(self.system_info)
        params.vocab_only = not weights
        split = self.settings.tensor_split
        if split:
            most = self._library.llama_max_devices()
            if len(split) > most:
                raise UserError(f"tensor_split has {len(split)} shares; this llama.cpp knows {most} devices")
            shares = (ctypes.c_float * most)(*split)  # llama.cpp reads them while it loads
            params.tensor_split = ctypes.cast(shares, type(params.tensor_split))
        model = self._library.llama_model_load_from_file(os.fsencode(self.path), params)
        if not model:  # passed on, a NULL model crashes the process
            layers = self.settings.gpu_layers
            memory = (
                "; if an accelerator's memory is short, lower gpu_layers (--gpu-layers)" if layers else ""
            )
            raise UserError(
                f"{self.path} cannot be loaded as a GGUF model{native_log().reason()}; "
                f"fetch or convert it again, and check that this llama.cpp knows its architecture{memory}"
            )
        return model

    def refuse_unsuited(self, with_states: bool) -> None:
        """Raise `UserError` for a model that is no decoder or takes no text, and without `with_states` for a
        recurrent one. Needs no weights."""
        if self.is_recurrent and not with_states:
            raise UserError(
                f"{self.settings.path} has recurrent layers, and their state cannot be cut back; a target in "
                "GGUF must be an attention-only decoder; choose another model, or use this one as a draft"
            )
        kinds = {
            "a diffusion model": self._library.llama_model_is_diffusion(self._model),
            "an encoder model": self._library.llama_model_has_encoder(self._model),
            "an embedding model or a ranker": self._own("pooling_type") not in ("", "0"),
            "a model whose tokens see later ones": self._own("attention.causal") == "false",
        }
        for kind, applies in kinds.items():
            if applies:
                raise UserError(f"{self.settings.path} is {kind}; it must be a decoder; choose another model")
        if not self.context_length:
            raise self._wrong("context_length", 0, 1, MAX_NUMBER)

    @property
    def description(self) -> str:
        """Return the architecture and size in llama.cpp's words."""
        text = ctypes.create_string_buffer(256)
        self._library.llama_model_desc(self._model, text, len(text))
        return text.value.decode("utf-8", "replace")

    def metadata(self, key: str) -> str:
        """Return a value of the file's metadata; empty if it has none under `key`."""
        text = ctypes.create_string_buffer(LONGEST_VALUE)
        size = self._library.llama_model_meta_val_str(self._model, key.encode(), text, len(text))
        return text.value.decode("utf-8", "replace") if size > 0 else ""

    @property
    def context_length(self) -> int:
        """Return the tokens of the longest text in training; 0 if the file does not say. Needs no weights.
        Raises `UserError` for more than a context may have."""
        return self._number("context_length")

    @property
    def keeps_latents(self) -> bool:
        """Tell whether attention is latent and its KV one latent a token, whose first part is the value too.
        Needs no weights."""
        return self._number("attention.key_length_mla") > 0

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of one token's keys and values over all layers; 0 for a model without attention.

        Needs no weights. Where layers have heads of several sizes, all count as the largest. Raises
        `UserError` for sizes that no model has.
        """
        with GgufFile(self.path) as file:
            heads = self._by_layer(file, "attention.head_count")
            kept = self._by_layer(file, "attention.head_count_kv")
        width = self._number("embedding_length") // max([1, *heads])
        parts = ("key",) if self.keeps_latents else ("key", "value")
        own = sum(self._number(f"attention.{part}_length") or width for part in parts)
        kept = kept if any(kept) else heads
        shared = self._number("attention.shared_kv_layers")  # the last layers, which keep nothing
        num_values = own * sum(kept[: max(0, len(kept) - shared)])
        num_values += len(kept) * self._number("attention.indexer.key_length")
        return num_values * (4 if self.settings.exact else 2)

    def _own(self, key: str) -> str:
        """Return a value of the architecture's metadata; empty if the file has none."""
        return self.metadata(f"{self.metadata('general.architecture')}.{key}")

    def _number(self, key: str, most: int = MAX_NUMBER) -> int:
        """Return a whole number of the architecture's metadata; 0 if llama.cpp reports none. Raises
        `UserError` for one outside [0, most], which would size something."""
        value = self._own(key)
        return self._checked(key, int(value), most) if WHOLE_NUMBER.fullmatch(value) else 0

    def _by_layer(self, file: GgufFile, key: str) -> list[int]:
        """Return a whole number of the architecture's metadata for each layer. Raises as `_number`."""
        count = self._number("block_count", MAX_LAYERS)
        numbers = file.numbers(f"{self.metadata('general.architecture')}.{key}")
        if len(numbers) < count:
            return [self._number(key)] * count
        return [self._checked(key, number, MAX_NUMBER) for number in numbers[:count]]

    def _checked(self, key: str, number: int, most: int) -> int:
        if not 0 <= number <= most:
            raise self._wrong(key, number, 0, most)
        return number

    def _wrong(self, key: str, number: int, least: int, most: int) -> UserError:
        return UserError(
            f"the metadata of {self.path} gives {number} as the model's {key}; it must lie in [{least}, "
            f"{most}]; fetch or convert the file again, or choose another model"
        )

    @cached_property
    def types(self) -> dict[str, int]:
        """Return the ggml_type of each matrix of the layers by its name. Needs no weights."""
        with GgufFile(self.path) as file:
            return {name: kind for name, kind in file.matrices() if name.startswith("blk.")}

    @property
    def chat_template(self) -> str:
        """Return the file's own Jinja template; empty without one."""
        template: bytes | None = self._library.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else ""

    def close(self) -> None:
        """Free the model. Afterwards only another `close` is allowed."""
        model, self._model = self._model, None
        if model:
            self._shared.give_back(self._library.llama_model_free)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
