"""llama.cpp as the other side of the comparison: its tokenizer, and its logits in the exact mode."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from demo_models import DRAFT_GGUF

TokenIds = list[int]
Tokenize = Callable[[str], TokenIds]


@contextmanager
def llama_model(path: Path, *, vocab_only: bool = False) -> Iterator[tuple[Any, Any]]:
    """Open `path` with llama.cpp; yield its ctypes bindings and the model pointer."""
    llama_cpp = pytest.importorskip("llama_cpp")
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    params.use_mmap = False
    params.use_extra_bufts = False  # its AMX path crashes in builds by GCC 12 on multi-token batches
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp refused {path}"
    try:
        yield llama_cpp, model
    finally:
        llama_cpp.llama_model_free(model)


@pytest.fixture
def llama_tokenize() -> Iterator[Tokenize]:
    """The committed draft's tokenizer inside llama.cpp: no BOS, special tokens not parsed."""
    with llama_model(DRAFT_GGUF, vocab_only=True) as (llama_cpp, model):
        vocab = llama_cpp.llama_model_get_vocab(model)

        def tokenize(text: str) -> TokenIds:
            data = text.encode()
            ids = (ctypes.c_int32 * (len(data) + 8))()
            count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), True, False)
            assert count >= 0
            return list(ids[:count])

        yield tokenize


def llama_logits(path: Path, tokens: TokenIds) -> npt.NDArray[np.float32]:
    """Logits `[len(tokens), vocab]` of the model at `path`: flash attention off, KV in f32, one thread."""
    with llama_model(path) as (llama_cpp, model):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        context = llama_cpp.llama_init_from_model(model, params)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        try:
            fill_batch(batch, tokens)
            assert llama_cpp.llama_decode(context, batch) == 0
            num_words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
            rows = [llama_cpp.llama_get_logits_ith(context, i)[:num_words] for i in range(len(tokens))]
            return np.array(rows, dtype=np.float32)
        finally:
            llama_cpp.llama_batch_free(batch)
            llama_cpp.llama_free(context)


def fill_batch(batch: Any, tokens: TokenIds) -> None:
    """Put `tokens` into `batch` as sequence 0 from position 0, logits wanted everywhere."""
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index] = token
        batch.pos[index] = index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = 1


@pytest.fixture(name="llama_logits")
def llama_logits_fixture() -> Callable[[Path, TokenIds], npt.NDArray[np.float32]]:
    """`llama_logits` for tests, which cannot import a conftest."""
    return llama_logits
