"""Damaged model files, drawn by a seed: as a bad disk, a broken fetch or a person makes them.

A damage is a function from a file's bytes and a random source to other bytes. gguf's own reader tells where
the numbers and texts of a header stand, so that damages hit counts, lengths, types, shapes and offsets
instead of only the middle of weights.
"""

import json
import math
import random
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

Damage = Callable[[bytes, random.Random], bytes]
Spot = tuple[int, int]
"""Where a number or a text of a GGUF header stands, and its bytes."""

MOST_PARTS = 12  # of one field: the arrays of tokens have thousands


@cache
def spots(data: bytes) -> list[list[Spot]]:
    """The parts of each field and each tensor in the header of a whole GGUF file."""
    from gguf import GGUFReader

    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        Path(file.name).write_bytes(data)
        reader = GGUFReader(file.name)
        fields = [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]
        found = []
        for field in fields:
            at, parts = field.offset, list[Spot]()
            for part in field.parts[:MOST_PARTS]:
                parts += [(at, part.nbytes)] if part.nbytes else []
                at += part.nbytes
            found.append(parts)
    return found


def cut(data: bytes, rng: random.Random) -> bytes:
    """Broken off: anywhere, or in the first kilobytes, where all headers are."""
    return data[: rng.randrange(rng.choice((len(data), min(len(data), 4096))))]


def flips(data: bytes, rng: random.Random) -> bytes:
    """Some bits, of the header's part or of all."""
    bits, reach = bytearray(data), rng.choice((64, 1024, 8192, len(data)))
    for _ in range(rng.choice((1, 2, 8, 64))):
        bits[rng.randrange(min(reach, len(bits)))] ^= 1 << rng.randrange(8)
    return bytes(bits)


def moved(data: bytes, rng: random.Random) -> bytes:
    """A stretch left out, told twice, or of zeros, as blocks of a disk are."""
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((1, 8, 512, 4096)))
    piece = data[start:stop]
    middle = rng.choice((b"", piece + piece, bytes(len(piece)), rng.randbytes(len(piece))))
    return data[:start] + middle + data[stop:]


def strange(width: int, rng: random.Random) -> int:
    """A number that arithmetic trips over, in so many bytes."""
    most = (1 << (8 * width)) - 1
    edges = (0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63)
    return rng.choice((*edges, most, most - 1, most - 31, rng.randrange(most + 1))) & most


def header(data: bytes, rng: random.Random) -> bytes:
    """One to three numbers of the header, each strange or near its own; or a byte of a text."""
    every = spots(data)
    for _ in range(rng.choice((1, 1, 1, 3))):
        at, width = rng.choice(rng.choice(every))
        if width > 8:
            at, width = at + rng.randrange(width), 1
        old = int.from_bytes(data[at : at + width], "little")
        near = (old + rng.choice((-32, -1, 1, 32))) % (1 << (8 * width))
        number = rng.choice((strange(width, rng), near))
        data = data[:at] + number.to_bytes(width, "little") + data[at + width :]
    return data


GGUF: dict[str, Damage] = {
    "cut": cut,
    "flips": flips,
    "moved": moved,
    "header": header,
    "header again": header,
    "header once more": header,
}


def _joined(table: object, body: bytes) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + body


def header_length(data: bytes, rng: random.Random) -> bytes:
    """The eight bytes at the beginning."""
    return struct.pack("<Q", strange(8, rng)) + data[8:]


def entry(data: bytes, rng: random.Random) -> bytes:
    """A field of a tensor."""
    (length,) = struct.unpack("<Q", data[:8])
    table, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    about = table[rng.choice([name for name in table if name != "__metadata__"])]
    key = rng.choice(("dtype", "shape", "data_offsets"))
    if key == "dtype":
        about[key] = rng.choice(("F64", "U8", "F4", "X9", "", None, 7, ["F32"]))
    elif rng.random() < 0.7 and about[key]:
        about[key][rng.randrange(len(about[key]))] = rng.choice((strange(8, rng), -1, 1.5, "1", None, True))
    else:
        about[key] = rng.choice(([], [1], [0, 0], list(range(40)), {}, "0", None, about[key] * 2))
    return _joined(table, body)


def deep(data: bytes, rng: random.Random) -> bytes:
    """JSON that is nested, huge, or none."""
    text = rng.choice((b"[" * 200_000, b"1" * 100_000, b"{}", b"null", b"\xff\xfe{}", b'{"a":1,"a":1}'))
    return struct.pack("<Q", len(text)) + text + data[-64:]


SAFETENSORS: dict[str, Damage] = {
    "cut": cut,
    "flips": flips,
    "moved": moved,
    "header length": header_length,
    "entry": entry,
    "deep": deep,
}


def damaged(whole: bytes, damages: dict[str, Damage], seed: int) -> tuple[str, bytes]:
    """The damage's name, and the file. One seed is one file; kinds come in turn."""
    name = list(damages)[seed % len(damages)]
    return name, damages[name](whole, random.Random(seed))


def whole_safetensors() -> bytes:
    """A small file of weights, all of it right."""
    shapes = {"embed.weight": [64, 16], "norm.weight": [16], "layers.0.q.weight": [16, 16], "one": []}
    table, at = dict[str, Any](__metadata__={"format": "pt"}), 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return _joined(table, random.Random(1).randbytes(at))
