"""Damaged model files, drawn by a seed: as a bad disk, a broken fetch or a person makes them.

A damage is a function from a file's bytes and a random source to other bytes. The numbers of a GGUF header
come from a walk of its own (`spots`), so that damages hit counts, lengths, types, shapes and offsets
instead of only the middle of weights.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9

Damage = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Spot:
    """A number or text of a GGUF header."""

    at: int
    width: int
    kind: str  # count, length, type, value, text, shape or place


def spots(data: bytes) -> list[Spot]:
    """All of a whole GGUF file's header."""
    return list(_Walk(data).all())


class _Walk:
    """Through a file that is known to be right."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4

    def all(self) -> Iterator[Spot]:
        yield self._number(4, "type")
        tensors, values = self._number(8, "count"), self._number(8, "count")
        yield from (tensors, values)
        for _ in range(self._read(values)):
            yield from self._value()
        for _ in range(self._read(tensors)):
            yield from self._tensor()

    def _value(self) -> Iterator[Spot]:
        yield from self._text()
        kind = self._number(4, "type")
        yield kind
        if self._read(kind) == ARRAY:
            inner, count = self._number(4, "type"), self._number(8, "count")
            yield from (inner, count)
            for _ in range(self._read(count)):
                yield from self._plain(self._read(inner))
        else:
            yield from self._plain(self._read(kind))

    def _plain(self, kind: int) -> Iterator[Spot]:
        if kind == STRING:
            yield from self._text()
        else:
            yield self._number(SCALAR_BYTES[kind], "value")

    def _tensor(self) -> Iterator[Spot]:
        yield from self._text()
        dims = self._number(4, "count")
        yield dims
        for _ in range(self._read(dims)):
            yield self._number(8, "shape")
        yield self._number(4, "type")
        yield self._number(8, "place")

    def _text(self) -> Iterator[Spot]:
        length = self._number(8, "length")
        yield length
        if count := self._read(length):
            yield self._number(count, "text")

    def _number(self, width: int, kind: str) -> Spot:
        self._at += width
        return Spot(self._at - width, width, kind)

    def _read(self, spot: Spot) -> int:
        return int.from_bytes(self._data[spot.at : spot.at + spot.width], "little")


# --- damages of any file ------------------------------------------------------------------------------------


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


# --- GGUF ---------------------------------------------------------------------------------------------------


def strange(width: int, rng: random.Random) -> int:
    """A number that arithmetic trips over, in so many bytes."""
    most = (1 << (8 * width)) - 1
    edges = (0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63)
    return rng.choice((*edges, most, most - 1, most - 31, rng.randrange(most + 1))) & most


def _put(data: bytes, spot: Spot, number: int) -> bytes:
    return data[: spot.at] + number.to_bytes(spot.width, "little") + data[spot.at + spot.width :]


def _number_of(kinds: tuple[str, ...]) -> Damage:
    def damage(data: bytes, rng: random.Random) -> bytes:
        chosen = [spot for spot in spots(data) if spot.kind in kinds]
        for spot in rng.sample(chosen, rng.choice((1, 1, 1, 3))):
            old = int.from_bytes(data[spot.at : spot.at + spot.width], "little")
            near = (old + rng.choice((-32, -1, 1, 32))) % (1 << (8 * spot.width))
            data = _put(data, spot, rng.choice((strange(spot.width, rng), near)))
        return data

    return damage


def hyperparameter(data: bytes, rng: random.Random) -> bytes:
    """A value that the model is built by, but not one of the thousands in the tokens' arrays."""
    values, every = [], spots(data)
    for before, spot in itertools.pairwise(every):
        if spot.kind == "value" and spot.width >= 4 and before.kind == "type":
            values.append(spot)
    spot = rng.choice(values)
    return _put(data, spot, strange(spot.width, rng))


def overlap(data: bytes, rng: random.Random) -> bytes:
    """A tensor in another's bytes."""
    places = [spot for spot in spots(data) if spot.kind == "place"]
    one, other = rng.sample(places, 2)
    number = int.from_bytes(data[other.at : other.at + 8], "little") + rng.choice((0, 0, 32, -32))
    return _put(data, one, max(0, number))


def bad_text(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are no UTF-8, or another name."""
    spot = rng.choice([spot for spot in spots(data) if spot.kind == "text"])
    text = bytearray(data)
    text[spot.at + rng.randrange(spot.width)] = rng.choice((0xFF, 0xC0, 0x80, 0x00, rng.randrange(256)))
    return bytes(text)


GGUF: dict[str, Damage] = {
    "cut": cut,
    "flips": flips,
    "moved": moved,
    "counts": _number_of(("count", "length")),
    "types": _number_of(("type",)),
    "shapes": _number_of(("shape",)),
    "places": _number_of(("place",)),
    "values": _number_of(("value",)),
    "hyperparameter": hyperparameter,
    "overlap": overlap,
    "bad text": bad_text,
}

# --- safetensors --------------------------------------------------------------------------------------------


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def header_length(data: bytes, rng: random.Random) -> bytes:
    """The eight bytes at the beginning."""
    return struct.pack("<Q", strange(8, rng)) + data[8:]


def entry(data: bytes, rng: random.Random) -> bytes:
    """A field of a tensor."""
    header, body = _header(data)
    name = rng.choice([name for name in header if name != "__metadata__"])
    about = header[name]
    key = rng.choice(("dtype", "shape", "data_offsets"))
    if key == "dtype":
        about[key] = rng.choice(("F64", "U8", "F4", "X9", "", None, 7, ["F32"]))
    elif rng.random() < 0.7 and about[key]:
        about[key][rng.randrange(len(about[key]))] = rng.choice((strange(8, rng), -1, 1.5, "1", None, True))
    else:
        about[key] = rng.choice(([], [1], [0, 0], list(range(40)), {}, "0", None, about[key] * 2))
    return _joined(header, body)


def names(data: bytes, rng: random.Random) -> bytes:
    """A tensor gone, told twice under two names, or metadata that are none."""
    header, body = _header(data)
    one = rng.choice([name for name in header if name != "__metadata__"])
    change = rng.randrange(3)
    if change == 0:
        del header[one]
    elif change == 1:
        header[rng.choice(("", one + "2", "x" * 100_000, "\0"))] = header[one]
    else:
        header["__metadata__"] = rng.choice((None, [], {"a": 1}, {"a": {"b": "c"}}, "text"))
    return _joined(header, body)


def deep(data: bytes, rng: random.Random) -> bytes:
    """JSON that is nested, huge, or none."""
    _, body = _header(data)
    text = rng.choice(
        (
            b"[" * 200_000,
            b'{"a":' * 100_000,
            b"1" * 100_000,
            b"{}",
            b"null",
            b"NaN",
            b"\xff\xfe{}",
            b'{"a":1,"a":1}',
        )
    )
    return struct.pack("<Q", len(text)) + text + body


SAFETENSORS: dict[str, Damage] = {
    "cut": cut,
    "flips": flips,
    "moved": moved,
    "header length": header_length,
    "entry": entry,
    "names": names,
    "deep": deep,
}


def damaged(whole: bytes, damages: dict[str, Damage], seed: int) -> tuple[str, bytes]:
    """The damage's name, and the file. One seed is one file; kinds come in turn."""
    name = list(damages)[seed % len(damages)]
    rng = random.Random(seed)
    data = damages[name](whole, rng)
    if rng.random() < 0.1 and data:  # two at once
        data = flips(data, rng)
    return name, data


def whole_safetensors() -> bytes:
    """A small file of weights, all of it right."""
    shapes = {"embed.weight": [64, 16], "norm.weight": [16], "layers.0.q.weight": [16, 16], "one": []}
    header, at = dict[str, Any](__metadata__={"format": "pt"}), 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return _joined(header, random.Random(1).randbytes(at))
