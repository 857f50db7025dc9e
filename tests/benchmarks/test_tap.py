"""A tap sees each gRPC message of each call, however TCP cuts the bytes."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tap import PREFACE, Reader, Seen, Tap
from common.errors import UserError


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def message(size: int) -> bytes:
    return struct.pack(">BI", 0, size) + bytes(size)


WIRE = b"".join(
    (
        PREFACE,
        frame(4, 0, bytes(18)),  # SETTINGS
        frame(1, 1, bytes(60)),  # HEADERS
        frame(0, 1, message(100)),
        frame(8, 0, bytes(4)),  # WINDOW_UPDATE
        frame(0, 3, message(7)[:4]),
        frame(0, 1, message(0) + message(20)),
        frame(0, 3, message(7)[4:]),
    )
)


@given(st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_messages_are_read_however_the_bytes_come(cuts: list[int]) -> None:
    seen: dict[int, list[Seen]] = {}
    reader = Reader(lambda: 5.0, lambda stream: seen.setdefault(stream, []), PREFACE)
    edges = [0, *sorted(cuts), len(WIRE)]
    for start, end in pairwise(edges):
        reader.feed(WIRE[start:end])
    assert seen == {1: [(5.0, 100), (5.0, 0), (5.0, 20)], 3: [(5.0, 7)]}


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="not HOST:PORT"):
        Tap("nowhere")
