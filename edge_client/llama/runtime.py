"""One loaded model with one llama.cpp context: batches in, logits out, sequences of KV cells.

Every pointer and return code is checked here; what a code means for the draft is the drafter's business
(`edge_client.llama.drafter`). A context is not thread-safe: one thread at a time.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from edge_client.llama.batch import Batch
from edge_client.llama.library import native_log
from edge_client.llama.model import LlamaModel
from edge_client.llama.settings import KV_TYPES, LlamaSettings

FloatArray = NDArray[np.float32]

NO_KV_SLOT = 1  # llama_decode: no free cells, nothing was changed
ALL_SEQUENCES = -1
TO_THE_END = -1


class LlamaRuntime(LlamaModel):
    """Loads in the constructor, frees in `close`. Raises `UserError` with what to do about it.

    `n_ctx` KV cells are shared by all sequences (unified KV), so a cell may belong to several of them.
    """

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__(settings)
        self._context: Any = None
        self.n_ctx_train: int = self._library.llama_model_n_ctx_train(self._model)
        self.n_seq_max = settings.num_sequences(self.num_vocab)
        try:
            self._refuse_unsuited()
            self._context = self._new_context()
        except UserError:
            self.close()
            raise
        self._memory = self._library.llama_get_memory(self._context)
        self.n_ctx: int = self._library.llama_n_ctx(self._context)
        self.n_batch: int = self._library.llama_n_batch(self._context)
        self.max_rows = settings.max_rows
        self.batch = Batch(self._library, self.n_batch)
        # The binding's own wrapper makes a pointer object, which costs more than the call.
        self._logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            ctypes.cast(self._library.llama_get_logits, ctypes.c_void_p).value or 0
        )
        self._logits_at = 0
        self._logits: FloatArray = np.empty((0, self.num_vocab), np.float32)

    # --- evaluation -------------------------------------------------------------------------------------

    def decode(self) -> int:
        """Evaluate `batch`. 0 = done; NO_KV_SLOT = nothing changed; else the KV may have changed."""
        code: int = self._library.llama_decode(self._context, self.batch.struct)
        return code

    def logits(self, num_rows: int) -> FloatArray:
        """[num_rows, vocabulary] of the batch rows that asked for output, in their order.

        A view of llama.cpp's own buffer: gone with the next `decode`.
        """
        address = self._logits_address(self._context)
        if not address:
            return self._logits[:0]
        if address != self._logits_at:  # moves only when llama.cpp enlarges it
            whole = (ctypes.c_float * (self.max_rows * self.num_vocab)).from_address(address)
            self._logits = np.frombuffer(memoryview(whole), np.float32).reshape(self.max_rows, self.num_vocab)
            self._logits_at = address
        return self._logits[:num_rows]

    # --- sequences of KV cells --------------------------------------------------------------------------

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None:
        """The cells of `source` at positions [start, stop) belong to `destination` too. No data is copied."""
        self._library.llama_memory_seq_cp(self._memory, source, destination, start, stop)

    def seq_remove(self, sequence: int, start: int) -> bool:
        """Take the cells at `start` and beyond from a sequence, or from ALL_SEQUENCES. False: it cannot."""
        done: bool = self._library.llama_memory_seq_rm(self._memory, sequence, start, TO_THE_END)
        return done

    def seq_span(self, sequence: int) -> tuple[int, int]:
        """First and last position that a sequence holds; (-1, -1) for none."""
        first = self._library.llama_memory_seq_pos_min(self._memory, sequence)
        return first, self._library.llama_memory_seq_pos_max(self._memory, sequence)

    def seq_bytes(self, sequence: int) -> int:
        """Bytes that the state of a sequence takes: grows with its cells, so it shows cells held twice."""
        size: int = self._library.llama_state_seq_get_size(self._context, sequence)
        return size

    def clear(self) -> None:
        """Empty all sequences."""
        self._library.llama_memory_clear(self._memory, False)

    # --- life -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the context and the model. Again is allowed; anything else afterwards is not."""
        context, self._context = self._context, None
        if context:
            self._library.llama_free(context)
        super().close()

    # --- loading ----------------------------------------------------------------------------------------

    def _refuse_unsuited(self) -> None:
        """A draft tree needs KV that can be shared and cut at any position: attention-only decoders."""
        for question, kind in (
            (self._library.llama_model_is_recurrent, "recurrent"),
            (self._library.llama_model_is_hybrid, "partly recurrent"),
            (self._library.llama_model_is_diffusion, "a diffusion model"),
            (self._library.llama_model_has_encoder, "an encoder model"),
        ):
            if question(self._model):
                raise UserError(
                    f"{self.settings.path} is {kind}; a draft must be an attention-only decoder, because its "
                    "state is shared between branches and cut back; choose another draft model"
                )

    def _new_context(self) -> Any:
        context = self._library.llama_init_from_model(self._model, self._context_params())
        if not context:
            raise UserError(
                f"llama.cpp cannot make a context for {self.settings.path}{native_log().reason()}; "
                f"lower n_ctx ({self.settings.n_ctx}) if memory is short, or use kv_type f16"
            )
        return context

    def _context_params(self) -> Any:
        settings, params = self.settings, self._library.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = settings.n_batch
        params.n_ubatch = settings.num_together(settings.n_ctx or self.n_ctx_train)
        params.n_seq_max = self.n_seq_max
        params.n_outputs_max = max(settings.max_rows, self.n_seq_max)  # llama.cpp aborts below n_seq_max
        params.n_threads = settings.threads or default_threads(_num_processors())
        params.n_threads_batch = settings.threads_batch or params.n_threads
        params.flash_attn_type = _flash_attention(settings)
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.kv_unified = True  # a cell in several sequences; separate KV would be copied, and cut n_ctx up
        params.swa_full = True  # a sliding window's pruned cells could be needed again after a dead branch
        params.no_perf = True
        return params


def _flash_attention(settings: LlamaSettings) -> int:
    """llama_flash_attn_type: -1 leaves it to llama.cpp."""
    if settings.flash_attention is not None:
        return int(settings.flash_attention)
    return -1 if settings.gpu_layers or settings.kv_type == "q8_0" else 0


def default_threads(num_processors: int) -> int:
    """All processors but one. llama.cpp's threads wait for each other in every layer, so a processor that is
    busy elsewhere (with our event loop, or with a verifier on the same machine) holds all of them up."""
    return max(1, num_processors - 1)


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
