"""Hold the input of one llama_decode in arrays that llama.cpp reads in place."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

INT32_BYTES = ctypes.sizeof(ctypes.c_int32)


class LlamaBatch:
    """Holds up to `num_rows` tokens, each in one or several sequences. `struct` is the llama_batch.

    We allocate the arrays: `llama_batch_init` would allocate one per row. One slice assignment writes a
    column here, several times faster than numpy's for a handful of rows.
    """

    def __init__(self, library: Any, num_rows: int) -> None:
        self._tokens: Any = (ctypes.c_int32 * num_rows)()
        self._positions: Any = (ctypes.c_int32 * num_rows)()
        self._sequences: Any = (ctypes.c_int32 * num_rows)()  # of rows in one sequence
        self._outputs: Any = (ctypes.c_int8 * num_rows)()
        self._counts = (ctypes.c_int32 * num_rows)(*[1] * num_rows)
        first = ctypes.addressof(self._sequences)
        self._single = [first + row * INT32_BYTES for row in range(num_rows)]
        self._lists = (ctypes.c_void_p * num_rows)(*self._single)  # where each row's sequences stand
        self._shared: dict[int, Any] = {}  # rows that are in several sequences now, and the arrays of those
        pointer, integer = ctypes.POINTER, ctypes.c_int32
        self.struct = library.llama_batch()
        self.struct.token = ctypes.cast(self._tokens, pointer(integer))
        self.struct.pos = ctypes.cast(self._positions, pointer(integer))
        self.struct.n_seq_id = ctypes.cast(self._counts, pointer(integer))
        self.struct.seq_id = ctypes.cast(self._lists, pointer(pointer(integer)))
        self.struct.logits = ctypes.cast(self._outputs, pointer(ctypes.c_int8))

    def fill(self, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> None:
        """Set all rows, each in one sequence. A row with an output of 1 gets logits, one with 0 gets none."""
        size = len(tokens)
        self._tokens[:size] = tokens
        self._positions[:size] = positions
        self._sequences[:size] = sequences
        self._outputs[:size] = outputs
        self.struct.n_tokens = size
        for row in self._shared:
            self._counts[row], self._lists[row] = 1, self._single[row]
        self._shared.clear()

    def share(self, row: int, sequences: Iterable[int]) -> None:
        """Put `row` in these sequences, instead of the one that `fill` gave it."""
        ids = list(sequences)
        array = self._shared[row] = (ctypes.c_int32 * len(ids))(*ids)
        self._counts[row], self._lists[row] = len(ids), ctypes.addressof(array)
