"""Reads what llama.cpp does not report of a GGUF file: lists of numbers, and the types of matrices."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self

from common.errors import UserError
from common.llama.library import library

FILE, INDEX, NAME = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
NUMBERS: dict[int, Callable[..., Any]] = {
    0: ctypes.c_uint8, 1: ctypes.c_int8, 2: ctypes.c_uint16, 3: ctypes.c_int16, 4: ctypes.c_uint32,
    5: ctypes.c_int32, 7: ctypes.c_bool, 10: ctypes.c_uint64, 11: ctypes.c_int64,
}  # fmt: skip
"""C types of whole numbers by gguf_type."""

ARRAY = 9  # gguf_type


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


FUNCTIONS = {  # result and arguments
    "gguf_init_from_file": (FILE, NAME, _Params),
    "gguf_free": (None, FILE),
    "gguf_find_key": (INDEX, FILE, NAME),
    "gguf_get_kv_type": (ctypes.c_int, FILE, INDEX),
    "gguf_get_arr_type": (ctypes.c_int, FILE, INDEX),
    "gguf_get_arr_n": (ctypes.c_size_t, FILE, INDEX),
    "gguf_get_arr_data": (ctypes.c_void_p, FILE, INDEX),
    "gguf_get_n_tensors": (INDEX, FILE),
    "gguf_get_tensor_name": (NAME, FILE, INDEX),
    "gguf_get_tensor_type": (ctypes.c_int, FILE, INDEX),
    "gguf_get_tensor_ne": (ctypes.POINTER(INDEX), FILE, INDEX),
}


@cache
def _native() -> Any:
    """Return the library that holds ggml's functions. The binding has no names for them."""
    native = library()._lib
    if not hasattr(native, "gguf_free"):  # Windows looks a name up in one library only
        extensions: Any = importlib.import_module("llama_cpp._ctypes_extensions")
        native = extensions.load_shared_library("ggml-base", Path(extensions.__file__).parent / "lib")
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(native, name)
        function.restype, function.argtypes = result, arguments
    return native


class GgufFile:
    """Reads the description of a local file, without its weights. Raises `UserError` for a broken one."""

    def __init__(self, path: str) -> None:
        self._native = _native()
        self._file = self._native.gguf_init_from_file(os.fsencode(path), _Params(True, None))
        if not self._file:
            raise UserError(f"{path} cannot be read as a GGUF file; fetch or convert it again")

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers of the metadata; empty if there is none under `key`."""
        native, file = self._native, self._file
        place = native.gguf_find_key(file, key.encode())
        if place < 0 or native.gguf_get_kv_type(file, place) != ARRAY:
            return []
        kind = NUMBERS.get(native.gguf_get_arr_type(file, place))
        if kind is None:
            return []
        data = native.gguf_get_arr_data(file, place)
        whole: Any = kind * native.gguf_get_arr_n(file, place)
        return [int(number) for number in whole.from_address(data)]

    def matrices(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the ggml_type of each tensor of more than one dimension."""
        native, file = self._native, self._file
        for place in range(native.gguf_get_n_tensors(file)):
            if native.gguf_get_tensor_ne(file, place)[1] > 1:
                yield (
                    native.gguf_get_tensor_name(file, place).decode(),
                    native.gguf_get_tensor_type(file, place),
                )

    def close(self) -> None:
        self._native.gguf_free(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
