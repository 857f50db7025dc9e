"""The input of one llama_decode, in arrays that llama.cpp reads in place."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

INT32_BYTES = ctypes.sizeof(ctypes.c_int32)


class Batch:
    """Up to `num_rows` tokens, each in one sequence or in several. `struct` is the llama_batch.

    The arrays are ours: `llama_batch_init` would allocate one per row, and a column could not be written by
    one slice assignment, which for a handful of rows is several times faster than numpy's.
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
        self.struct = self._struct(library)

    def fill(self, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> None:
        """Set all rows, each in one sequence; `share` puts a row in more. At most `num_rows` rows.

        A row with an output of 1 gets logits, one with 0 gets none.
        """
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

    def _struct(self, library: Any) -> Any:
        struct = library.llama_batch()
        pointer, integer = ctypes.POINTER, ctypes.c_int32
        struct.token = ctypes.cast(self._tokens, pointer(integer))
        struct.pos = ctypes.cast(self._positions, pointer(integer))
        struct.n_seq_id = ctypes.cast(self._counts, pointer(integer))
        struct.seq_id = ctypes.cast(self._lists, pointer(pointer(integer)))
        struct.logits = ctypes.cast(self._outputs, pointer(ctypes.c_int8))
        return struct
