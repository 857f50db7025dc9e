"""A GGUF header is read with a bound on every number, and what is wrong with it is told in words."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.llama.header import BLOCKS, check_header


def text(words: str | bytes) -> bytes:
    data = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(data)) + data


def value(key: str | bytes, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def tensor(name: str | bytes, shape: tuple[int, ...], kind: int, start: int) -> bytes:
    dims = b"".join(struct.pack("<q", each) for each in shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, start)


LLAMA = value("general.architecture", 8, text("llama"))


def gguf(
    values: tuple[bytes, ...] = (LLAMA,),
    tensors: tuple[bytes, ...] = (tensor("a", (8, 2), 0, 0), tensor("b", (32,), 8, 64)),
    body: int = 98,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A small file; `body` bytes of tensors: 64 of `a`, 34 of `b`."""
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(values))))
    head += b"".join((*values, *tensors))
    return head + bytes(-len(head) % 32) + bytes(body)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    many = value("some.list", 9, struct.pack("<IQ", 8, 2) + text(b"\xff") + text("b"))
    found = check_header(write(tmp_path, gguf((LLAMA, many, value("n", 4, struct.pack("<I", 7))))))
    assert (found.version, found.architecture, found.values["n"]) == (3, "llama", 7)
    assert [(each.name, each.start, each.size) for each in found.tensors] == [("a", 0, 64), ("b", 64, 34)]
    assert found.data_at % 32 == 0


HUGE = (1 << 64) - 1
CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "another kind": (lambda: b"PK\x03\x04" + bytes(99), "is not a GGUF file"),
    "empty": (lambda: b"", "is not a GGUF file"),
    "magic alone": (lambda: b"GGUF", "ends in its version"),
    "an old version": (lambda: gguf(version=1), "version is 1, and 2 and 3 are known"),
    "big-endian": (lambda: gguf(version=3 << 24), "big-endian"),
    "tensors without end": (lambda: gguf(counts=(HUGE, 1)), "claims 18,446,744,073,709,551,615 tensors"),
    "values without end": (lambda: gguf(counts=(2, 1 << 32)), "claims 4,294,967,296 metadata values"),
    "more values than there are": (lambda: gguf(counts=(2, 3)), "damaged GGUF file"),
    "a huge key": (lambda: gguf((struct.pack("<Q", HUGE),)), "the key of metadata value 0 is 18,446"),
    "a huge text": (
        lambda: gguf((value("a", 8, struct.pack("<Q", 1 << 28)),)),
        "ends in the text of 'a'",
    ),
    "a key that is no text": (lambda: gguf((value(b"\xff\xfe", 4, b"1234"),)), "is not UTF-8"),
    "a name that is no text": (lambda: gguf(tensors=(tensor(b"\xc3(", (8,), 0, 0),)), "is not UTF-8"),
    "a key twice": (lambda: gguf((LLAMA, LLAMA)), "has 'general.architecture' twice"),
    "a tensor twice": (
        lambda: gguf(tensors=(tensor("a", (8, 2), 0, 0), tensor("a", (8,), 0, 64))),
        "has the tensor 'a' twice",
    ),
    "an unknown type of value": (lambda: gguf((value("a", 13, b"12345678"),)), "unknown type 13"),
    "arrays in arrays": (
        lambda: gguf((value("a", 9, struct.pack("<IQ", 9, 1)),)),
        "array 'a' holds the unknown type 9",
    ),
    "an array without end": (
        lambda: gguf((value("a", 9, struct.pack("<IQ", 4, 1 << 62)),)),
        "more than the file has",
    ),
    "texts without end": (
        lambda: gguf((value("a", 9, struct.pack("<IQ", 8, 1 << 60)),)),
        "the file has no room for them",
    ),
    "no architecture": (lambda: gguf(()), "names no architecture"),
    "an architecture that is a number": (
        lambda: gguf((value("general.architecture", 4, b"1234"),)),
        "names no architecture",
    ),
    "an alignment of nothing": (
        lambda: gguf((LLAMA, value("general.alignment", 4, struct.pack("<I", 0)))),
        "alignment is 0",
    ),
    "an alignment in words": (
        lambda: gguf((LLAMA, value("general.alignment", 8, text("32")))),
        "it must be a number",
    ),
    "five dimensions": (lambda: gguf(tensors=(tensor("a", (1,) * 5, 0, 0),)), "has 5 dimensions"),
    "no dimensions": (lambda: gguf(tensors=(tensor("a", (), 0, 0),)), "has 0 dimensions"),
    "a negative shape": (lambda: gguf(tensors=(tensor("a", (-8,), 0, 0),)), "has the shape"),
    "a type that is none": (lambda: gguf(tensors=(tensor("a", (8,), 99, 0),)), "has the type 99"),
    "half a block": (lambda: gguf(tensors=(tensor("a", (16,), 8, 0),)), "no whole blocks of 32"),
    "a product beyond 64 bits": (
        lambda: gguf(tensors=(tensor("a", (1 << 62, 1 << 62, 1 << 62, 4), 0, 0),)),
        "behind the end of the file",
    ),
    "cut off": (lambda: gguf(body=97), "'b' ends 1 bytes behind the end of the file"),
    "an offset of its own": (lambda: gguf(tensors=(tensor("a", (8,), 0, 5),)), "is not aligned"),
    "an overlap": (
        lambda: gguf(tensors=(tensor("a", (8, 2), 0, 0), tensor("b", (32,), 8, 32))),
        "'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told(case: str, tmp_path: Path) -> None:
    make, words = CASES[case]
    with pytest.raises(UserError, match=words):
        check_header(write(tmp_path, make()))


def test_every_beginning_of_a_file_is_told_to_be_cut_off(tmp_path: Path) -> None:
    whole = gguf()
    for length in range(len(whole)):
        with pytest.raises(UserError):
            check_header(write(tmp_path, whole[:length]))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        check_header(tmp_path / "none.gguf")


@pytest.mark.llama
def test_block_sizes_are_those_of_the_pinned_llama_cpp() -> None:
    """The library tells them itself; its function ends the process on a number that is no type."""
    import llama_cpp

    (base, *_) = (Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*")
    ggml = ctypes.CDLL(str(base))
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    for kind, sizes in BLOCKS.items():
        assert (ggml.ggml_blck_size(kind), ggml.ggml_type_size(kind)) == sizes, kind
