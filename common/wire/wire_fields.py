"""Count the fields of a message's bytes without parsing them.

A field of two bytes on the wire takes tens of bytes of memory once parsed. So a message with too many fields
is refused before protobuf parses it.
"""

from __future__ import annotations

from typing import Any

from common.errors import PeerError
from common.pb import verifier_pb2 as pb
from common.wire.bounds import MAX_PADDING, TOO_MUCH_PADDING
from common.wire.grpc_options import session_bytes

MAX_FIELDS = 8192
"""Most fields of one message, nested fields included. An `Open` with 1,024 biases has some 3,100; packed
tokens, as protobuf writes them, count once."""

SMALL = 4096
"""Bytes of a message whose fields need no count: parsed they take 200 KB at most."""

PADDING_FIELD = pb.SessionRequest.DESCRIPTOR.fields_by_name["padding"].number


def check_length(num_bytes: int, most: int) -> None:
    """Raise `PeerError` for a message of more than `most` bytes."""
    if num_bytes > most:
        raise PeerError(f"a message of {num_bytes} bytes came; this method takes {most} at most")


def check_request(data: bytes, max_positions: int) -> None:
    """Raise `PeerError` for the bytes of a `SessionRequest` that would cost too much to parse."""
    check_length(len(data), session_bytes(max_positions))
    if len(data) > SMALL:
        _Count(data).within(0, len(data), pb.SessionRequest.DESCRIPTOR)


class _Count:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._num_fields = 0
        self._num_padding = 0

    def within(self, at: int, end: int, kind: Any) -> None:
        """Count the fields of a message with the descriptor `kind` that lies at [at, end). Raises
        `PeerError`."""
        while at < end:
            key, at = self._varint(at, end)
            number, wire_type = key >> 3, key & 7
            self._enter(number, kind)
            if wire_type == 2:
                length, at = self._varint(at, end)
                field = None if kind is None else kind.fields_by_number.get(number)
                if field is not None and field.message_type is not None:
                    self.within(at, min(at + length, end), field.message_type)
                at += length
            elif wire_type == 0:
                _, at = self._varint(at, end)
            elif wire_type in (1, 5):
                at += 8 if wire_type == 1 else 4
            else:
                raise PeerError(f"a field of wire type {wire_type} came; no message has one")

    def _enter(self, number: int, kind: Any) -> None:
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise PeerError(f"a message has more than {MAX_FIELDS} fields; send repeated numbers packed")
        if number == PADDING_FIELD and kind is pb.SessionRequest.DESCRIPTOR:
            self._num_padding += 1
            if self._num_padding > MAX_PADDING:
                raise PeerError(TOO_MUCH_PADDING)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        number = shift = 0
        while at < end and shift < 64:
            byte = self._data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, at
            shift += 7
        raise PeerError("a message is cut off in the middle of a number, or a number has more than ten bytes")
