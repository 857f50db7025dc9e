"""Runs one loaded model in one llama.cpp context: batches in, logits out, sequences of KV cells.

Every pointer and return code is checked here. The caller interprets the codes. A
context is not thread-safe: one thread at a time.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.llama.batch import LlamaBatch
from common.llama.files import find_model
from common.llama.library import native_log
from common.llama.model import LlamaModel, LlamaSettings, SharedWeights

FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]

NO_KV_SLOT = 1  # llama_decode: no free cells, nothing was changed
ALL_SEQUENCES = -1
TO_THE_END = -1
BYTES = ctypes.POINTER(ctypes.c_uint8)
FLASH_AUTO, FLASH_OFF, FLASH_ON = -1, 0, 1  # llama_flash_attn_type
F32, F16, BF16 = 0, 1, 30  # ggml_type


class LlamaRuntime(LlamaModel):
    """Holds a model and a context. All sequences share its `n_ctx` KV cells (unified KV).

    With `is_recurrent` a sequence has a state too (Mamba, RWKV, hybrids). It is that of the last position:
    `seq_copy` and `seq_remove` take whole sequences only, and a row must be in one sequence, since llama.cpp
    computes a row in several wrongly, without an error. `with_states=False` refuses such models.

    With `settings.batch_invariant` a row's logits depend, on a processor, only on the cells that it sees,
    their order, and the kernels that its batch is large enough for. Flash attention adds up the visible cells
    one by one in their order. Keys in bf16 keep it from two shortcuts that are for f16 and f32 pairs alone:
    it would divide the cells of a lone row among threads, and compute 64 rows and more in tiles.
    """

    def __init__(
        self, settings: LlamaSettings, *, with_states: bool = True, shared: SharedWeights | None = None
    ) -> None:
        super().__init__(settings, shared=shared)
        self._context: Any = None
        self._adapter: Any = None
        self.n_ctx_train: int = self._library.llama_model_n_ctx_train(self._model)
        self.window: int = self._library.llama_model_n_swa(self._model)  # positions; 0 without sliding ones
        self.n_seq_max = settings.num_sequences(self.num_vocab, self.is_recurrent)
        try:
            self.refuse_unsuited(with_states)
            self._context = self._library.llama_init_from_model(self._model, self._context_params())
            if not self._context:
                raise UserError(
                    f"llama.cpp cannot make a context for {settings.path}{native_log().reason()}; "
                    f"if memory is short, take fewer KV cells than {settings.n_ctx} (--context, --slots)"
                )
            self._memory = self._library.llama_get_memory(self._context)
            if settings.adapter:
                self._adapt(settings.adapter)
            if not self._memory:
                raise UserError(
                    f"{settings.path} keeps neither KV nor states in llama.cpp, so it is no decoder; choose "
                    "another model"
                )
        except UserError:
            self.close()
            raise
        self.n_ctx: int = self._library.llama_n_ctx(self._context)
        self.n_batch: int = self._library.llama_n_batch(self._context)
        self.n_together: int = self._library.llama_n_ubatch(self._context)  # rows of a batch in one pass
        # A row of a recurrent model needs a sequence of its own, and half of them may hold committed texts.
        self.max_rows = (
            min(settings.max_rows, self.n_seq_max // 2) if self.is_recurrent else settings.max_rows
        )
        self.batch = LlamaBatch(self._library, self.n_batch)
        # The binding's wrapper makes a pointer object, which costs more than the call itself.
        self._logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            ctypes.cast(self._library.llama_get_logits, ctypes.c_void_p).value or 0
        )
        self._logits_at = 0
        self._logits: FloatArray = np.empty((0, self.num_vocab), np.float32)

    def _adapt(self, path: str) -> None:
        """Add a file's low-rank changes to the weights, in this context alone."""
        library, file = self._library, find_model(path)
        with self._shared.lock:
            self._adapter = library.llama_adapter_lora_init(self._model, os.fsencode(file))
        if not self._adapter:  # passed on, NULL crashes the process
            raise UserError(
                f"{file} cannot be used as an adapter of {self.path}{native_log().reason()}; take a LoRA in "
                "GGUF that was trained on this model"
            )
        adapters, scales = (library.llama_adapter_lora_p_ctypes * 1)(self._adapter), (ctypes.c_float * 1)(1.0)
        if code := library.llama_set_adapters_lora(self._context, adapters, 1, scales):
            raise UserError(f"llama.cpp cannot add the adapter {file} to {self.path} (code {code})")

    def decode(self) -> int:
        """Evaluate `batch`. 0 = done; NO_KV_SLOT = nothing changed; else the KV may have changed."""
        code: int = self._library.llama_decode(self._context, self.batch.struct)
        return code

    def logits(self, num_rows: int) -> FloatArray:
        """Return [num_rows, vocabulary] logits of the output rows, a view until the next `decode`."""
        address = self._logits_address(self._context)
        if not address:
            return self._logits[:0]
        if address != self._logits_at:  # moves only when llama.cpp enlarges it
            whole = (ctypes.c_float * (self.max_rows * self.num_vocab)).from_address(address)
            self._logits = np.frombuffer(memoryview(whole), np.float32).reshape(self.max_rows, self.num_vocab)
            self._logits_at = address
        return self._logits[:num_rows]

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None:
        """Share the cells of `source` at [start, stop) with `destination`. No data is copied."""
        self._library.llama_memory_seq_cp(self._memory, source, destination, start, stop)

    def seq_remove(self, sequence: int, start: int, stop: int = TO_THE_END) -> bool:
        """Remove a sequence's cells (or ALL_SEQUENCES') at [start, stop). Return False if it cannot."""
        done: bool = self._library.llama_memory_seq_rm(self._memory, sequence, start, stop)
        return done

    def seq_span(self, sequence: int) -> tuple[int, int]:
        """Return the first and last position that a sequence holds, (-1, -1) for none. A state holds one."""
        first: int = self._library.llama_memory_seq_pos_min(self._memory, sequence)
        last: int = self._library.llama_memory_seq_pos_max(self._memory, sequence)
        return first, last

    def seq_state(self, sequence: int) -> ByteArray:
        """Return a copy of a sequence's cells and data. `seq_restore` refuses an incomplete one."""
        library, context = self._library, self._context
        state = np.empty(library.llama_state_seq_get_size(context, sequence), np.uint8)
        size = library.llama_state_seq_get_data(context, state.ctypes.data_as(BYTES), len(state), sequence)
        return state[:size]

    def seq_restore(self, sequence: int, state: ByteArray) -> bool:
        """Replace a sequence by a copy of any. Return False, with it empty, if there is no room."""
        library, context = self._library, self._context
        read = library.llama_state_seq_set_data(context, state.ctypes.data_as(BYTES), len(state), sequence)
        return bool(read)

    def clear(self) -> None:
        self._library.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        context, self._context = self._context, None
        if context:
            self._library.llama_free(context)
        adapter, self._adapter = self._adapter, None
        if adapter:
            with self._shared.lock:
                self._library.llama_adapter_lora_free(adapter)
        super().close()

    def _context_params(self) -> Any:
        settings, params = self.settings, self._library.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = settings.n_batch
        params.n_ubatch = settings.num_together(settings.n_ctx or self.n_ctx_train)
        params.n_seq_max = self.n_seq_max
        params.n_outputs_max = max(settings.max_rows, self.n_seq_max)  # llama.cpp aborts below n_seq_max
        params.n_threads = settings.threads or default_threads()
        params.n_threads_batch = params.n_threads
        # Without flash attention a processor is faster at long contexts (docs/determinism.md); with layers on
        # an accelerator llama.cpp decides.
        by_default = FLASH_AUTO if settings.gpu_layers and not settings.exact else FLASH_OFF
        params.flash_attn_type = FLASH_ON if settings.batch_invariant else by_default
        params.type_k = params.type_v = F32 if settings.exact else F16
        if settings.batch_invariant:
            params.type_k = BF16
            if self.keeps_latents:  # values are a part of the keys
                params.type_v = BF16
        params.kv_unified = True  # a cell in several sequences; separate KV would be copied, and cut n_ctx up
        params.swa_full = True  # a sliding window's pruned cells could be needed again after a dead branch
        params.no_perf = True
        return params


def default_threads() -> int:
    """Return all processors but one. llama.cpp's threads wait for each other in every layer, so a processor
    busy with our event loop or with a local verifier delays all of them."""
    num_processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )  # not on macOS
    return max(1, (num_processors or 1) - 1)
