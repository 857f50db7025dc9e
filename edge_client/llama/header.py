"""A GGUF file's header, read with a bound on every number before llama.cpp is given the file.

llama.cpp reads files in C++, and a number that it believes can cost this process its life. Here each count
and length is held against the bytes that are left before anything is read by it, so a damaged or hostile
file costs at most its own size, and ends in a sentence. What only llama.cpp can tell (whether these tensors
make a model) is found out in a process of its own (`edge_client.llama.trial`).

The format: magic, version, counts; then metadata, typed values by key; then for each tensor name, shape, type
and offset; then, aligned, the tensors' bytes (ggml's docs/gguf.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from common.errors import UserError
from edge_client.model_store import GGUF_MAGIC, check_magic

VERSIONS = (2, 3)
"""What llama.cpp reads; 3 differs from 2 in that files of big-endian machines are told."""

MAX_ENTRIES = 1 << 16
"""Metadata values, and tensors. The largest models have some thousands of tensors."""

MAX_HEADER = 1 << 28
"""Bytes before the tensors: a vocabulary of 256k tokens with its merges takes some 15 MB."""

MAX_KEY = (1 << 16) - 1  # bytes; of the format
MAX_NAME = 63  # bytes of a tensor's name; ggml's names end with a zero byte in 64
MAX_DIMS = 4  # of ggml
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16  # a page of memory, and some; larger ones would only be holes

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Number of a metadata type -> `struct` code."""

BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip
"""ggml's number of a tensor type -> values in a block, bytes of a block (ggml.h of the pinned llama.cpp)."""

_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor's bytes lie."""

    name: str
    shape: tuple[int, ...]
    kind: int  # a key of BLOCKS
    start: int  # bytes behind the beginning of the tensors' part
    size: int  # bytes

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the weights. Of the metadata only single values are kept."""

    version: int
    values: dict[str, Scalar] = field(repr=False)
    tensors: tuple[Tensor, ...] = field(repr=False)
    data_at: int = 0  # bytes before the tensors' part

    @property
    def architecture(self) -> str:
        return str(self.values["general.architecture"])


def check_header(path: Path) -> Header:
    """Read and check it. Raises `UserError` in words if anything in it cannot be, or it cannot be read."""
    try:
        with path.open("rb", buffering=1 << 20) as file:
            return _Reader(file, path.stat().st_size).header(str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except _Damage as error:
        raise UserError(
            f"{path} is a damaged GGUF file: {error}. It is not loaded; fetch it or convert the model again"
        ) from error


class _Damage(Exception):
    """What is wrong, as a clause."""


class _Reader:
    """Reads forward, and never more than is there."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size
        self._at = 0

    def header(self, name: str) -> Header:
        check_magic(name, self._file.read(len(GGUF_MAGIC)))
        self._at = len(GGUF_MAGIC)
        version = self._version()
        num_tensors, num_values = self._entries("tensors"), self._entries("metadata values")
        values = self._values(num_values)
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise _Damage("it names no architecture (general.architecture)")
        alignment = _alignment(values.get("general.alignment", DEFAULT_ALIGNMENT))
        tensors = tuple(self._tensors(num_tensors, alignment))
        data_at = -(-self._at // alignment) * alignment
        _check_places(tensors, self._size - data_at)
        return Header(version, values, tensors, data_at)

    # --- numbers and texts ------------------------------------------------------------------------------

    def _take(self, count: int, what: str) -> bytes:
        if count > self._size - self._at:
            raise _Damage(f"it ends in {what}, {self._size:,} bytes in all")
        self._at += count
        if self._at > MAX_HEADER:
            raise _Damage(f"what stands before its tensors is longer than {MAX_HEADER:,} bytes")
        found = self._file.read(count)
        if len(found) != count:  # it became shorter while it was read
            raise _Damage(f"it ends in {what}")
        return found

    def _u32(self, what: str) -> int:
        number: int = _U32.unpack(self._take(4, what))[0]
        return number

    def _u64(self, what: str) -> int:
        number: int = _U64.unpack(self._take(8, what))[0]
        return number

    def _text(self, limit: int, what: str) -> str:
        length = self._u64(what)
        if length > limit:
            raise _Damage(f"{what} is {length:,} bytes long, and {limit:,} is the most")
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            raise _Damage(f"{what} is not UTF-8 ({error.reason} at byte {error.start})") from error

    # --- parts ------------------------------------------------------------------------------------------

    def _version(self) -> int:
        version = self._u32("its version")
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS:
            raise _Damage("it was written for big-endian machines, and this one is not")
        raise _Damage(f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are known")

    def _entries(self, what: str) -> int:
        count = self._u64(f"the number of {what}")
        if count > MAX_ENTRIES:
            raise _Damage(f"it claims {count:,} {what}, and {MAX_ENTRIES:,} is the most")
        return count

    def _values(self, count: int) -> dict[str, Scalar]:
        kept: dict[str, Scalar] = {}
        seen: set[str] = set()
        for number in range(count):
            key = self._text(MAX_KEY, f"the key of metadata value {number}")
            if key in seen:
                raise _Damage(f"its metadata has {key!r} twice")
            seen.add(key)
            value = self._value(self._u32(f"the type of {key!r}"), key)
            if value is not None:
                kept[key] = value
        return kept

    def _value(self, kind: int, key: str) -> Scalar | None:
        """None for an array, which is passed over."""
        if kind == ARRAY:
            self._array(key)
            return None
        if kind == STRING:
            return self._text(MAX_HEADER, f"the text of {key!r}")
        if kind not in SCALARS:
            raise _Damage(f"{key!r} has the unknown type {kind}")
        code = struct.Struct(f"<{SCALARS[kind]}")
        value: Scalar = code.unpack(self._take(code.size, f"the value of {key!r}"))[0]
        return value

    def _array(self, key: str) -> None:
        kind, count = self._u32(f"the type of {key!r}"), self._u64(f"the length of {key!r}")
        if kind == STRING:
            self._pass_texts(count, key)
        elif kind in SCALARS:
            self._pass(count * struct.calcsize(f"<{SCALARS[kind]}"), key)
        else:
            raise _Damage(f"the array {key!r} holds the unknown type {kind}")

    def _pass_texts(self, count: int, key: str) -> None:
        """Of tokens and merges, which need not be UTF-8: a token may be half a character."""
        if count * _U64.size > self._size - self._at:
            raise _Damage(f"{key!r} claims {count:,} texts, and the file has no room for them")
        what = f"the texts of {key!r}"
        for _ in range(count):
            self._take(_U64.unpack(self._take(8, what))[0], what)

    def _pass(self, count: int, key: str) -> None:
        """So many bytes, in pieces: a huge array is not held in memory."""
        if count > self._size - self._at:
            raise _Damage(f"the array {key!r} claims {count:,} bytes, more than the file has")
        while count:
            count -= len(self._take(min(count, 1 << 20), f"the array {key!r}"))

    def _tensors(self, count: int, alignment: int) -> Iterator[Tensor]:
        seen: set[str] = set()
        for number in range(count):
            tensor = self._tensor(number)
            if tensor.name in seen:
                raise _Damage(f"it has the tensor {tensor.name!r} twice")
            if tensor.start % alignment:
                raise _Damage(f"the tensor {tensor.name!r} is not aligned to {alignment} bytes")
            seen.add(tensor.name)
            yield tensor

    def _tensor(self, number: int) -> Tensor:
        name = self._text(MAX_NAME, f"the name of tensor {number}")
        num_dims = self._u32(f"the shape of {name!r}")
        if not 1 <= num_dims <= MAX_DIMS:
            raise _Damage(f"the tensor {name!r} has {num_dims} dimensions, and 1 to {MAX_DIMS} are possible")
        where = f"the shape of {name!r}"
        shape = tuple(_I64.unpack(self._take(8, where))[0] for _ in range(num_dims))
        kind, start = self._u32(f"the type of {name!r}"), self._u64(f"the place of {name!r}")
        return Tensor(name, shape, kind, start, _size_of(name, shape, kind))


def _alignment(value: Scalar) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Damage(f"its alignment is {value!r}, and it must be a number")
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise _Damage(f"its alignment is {value}, and powers of two from 8 to {MAX_ALIGNMENT} are possible")
    return value


def _size_of(name: str, shape: tuple[int, ...], kind: int) -> int:
    if min(shape) < 1:
        raise _Damage(f"the tensor {name!r} has the shape {shape}")
    if kind not in BLOCKS:
        raise _Damage(f"the tensor {name!r} has the type {kind}, which this llama.cpp does not know")
    values, size = BLOCKS[kind]
    if shape[0] % values:
        raise _Damage(f"the rows of the tensor {name!r} are no whole blocks of {values}")
    return math.prod(shape) // values * size


def _check_places(tensors: tuple[Tensor, ...], room: int) -> None:
    """All within the file, none in another's bytes."""
    before: Tensor | None = None
    for tensor in sorted(tensors, key=lambda each: each.start):
        if tensor.stop > room:
            raise _Damage(
                f"the tensor {tensor.name!r} ends {tensor.stop - room:,} bytes behind the end of the file"
            )
        if before is not None and tensor.start < before.stop:
            raise _Damage(f"the tensors {before.name!r} and {tensor.name!r} overlap")
        before = tensor
