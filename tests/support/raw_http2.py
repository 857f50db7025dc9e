"""A peer that speaks HTTP/2 frames by hand (RFC 9113), to do what no gRPC library would."""

import asyncio
import struct
from dataclasses import dataclass
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE = 0x4
SESSION = b"/forerun.v1.VerifierService/Session"


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    def __bytes__(self) -> bytes:
        length = struct.pack(">I", len(self.payload))[1:]
        return length + struct.pack(">BBI", self.kind, self.flags, self.stream) + self.payload


class RawPeer:
    """A connection to a verifier in plain text, from the address `source`. An async context manager."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._port, self._source = port, source
        self.num_data_bytes = 0  # received in DATA frames

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(self._source, 0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, *frames: Frame | bytes) -> None:
        self.writer.write(b"".join(map(bytes, frames)))

    def greet(self, window: int = 65535) -> None:
        """Say that this is HTTP/2; a stream of ours may have so many bytes on the way to us."""
        setting = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.send(PREFACE, Frame(SETTINGS, 0, 0, setting), Frame(SETTINGS, ACK, 0, b""))

    def call(self, stream: int, path: bytes = SESSION) -> None:
        """Begin a gRPC call."""
        pairs = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"verifier"),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        )  # fmt: skip
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in pairs)
        self.send(Frame(HEADERS, END_HEADERS, stream, block))

    def message(self, stream: int, message: bytes) -> None:
        """One gRPC message of it."""
        self.send(Frame(DATA, 0, stream, b"\x00" + struct.pack(">I", len(message)) + message))

    async def frame(self) -> Frame | None:
        """The next one; None when the other side has closed. Settings are acknowledged by the way."""
        try:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        frame = Frame(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, payload)
        self.num_data_bytes += len(payload) if frame.kind == DATA else 0
        return frame

    async def until_closed(self) -> list[Frame]:
        """All frames until the other side closes."""
        frames = list[Frame]()
        while (frame := await self.frame()) is not None:
            frames.append(frame)
        return frames


def _text(text: bytes) -> bytes:
    """A string literal of HPACK (RFC 7541 5.2), shorter than 127 bytes, not compressed."""
    assert len(text) < 127
    return bytes([len(text)]) + text
