"""Listens in on a verifier's connections, as somebody on the way would who sees through TLS as far as frames.

    async with Tap("127.0.0.1:50051") as tap:
        ...  # edges speak to tap.address
    for talk in tap.talks():
        print(talk.up, talk.down)

It passes bytes on as they are and reads HTTP/2 out of them: of each call the sizes of the gRPC messages and
when they went by. An observer of TLS records sees the same sizes and a constant more, several at once if they
left together (docs/privacy.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from common.address import host_and_port
from common.errors import UserError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says first (RFC 9113, 3.4)."""

FRAME_HEADER = 9  # bytes: length in three, type, flags, stream in four (RFC 9113, 4.1)
GRPC_PREFIX = 5  # bytes: whether it is compressed, and length in four
DATA = 0  # type of a frame
PADDED = 0x8  # flag; gRPC does not use HTTP/2's own padding

Seen = tuple[float, int]
"""A message: when its last byte went by, in seconds, and its bytes without gRPC's prefix."""


@dataclass(slots=True)
class Talk:
    """One call: what went up and down, in order."""

    up: list[Seen] = field(default_factory=list)
    down: list[Seen] = field(default_factory=list)

    @property
    def is_session(self) -> bool:
        """Whether it is more than a question and its answer."""
        return len(self.down) > 1


class Reader:
    """One direction of one connection: bytes to messages, by HTTP/2 stream."""

    def __init__(self, clock: Callable[[], float], told: Callable[[int], list[Seen]], preface: bytes) -> None:
        """`told`: the list of a stream's messages."""
        self._clock = clock
        self._told = told
        self._preface = len(preface)  # bytes of it that are still to come
        self._bytes = bytearray()
        self._calls: dict[int, bytearray] = {}

    def feed(self, data: bytes) -> None:
        self._bytes += data
        if self._preface:
            skipped = min(self._preface, len(self._bytes))
            self._preface -= skipped
            del self._bytes[:skipped]
        for stream, payload in self._data_frames():
            self._calls.setdefault(stream, bytearray()).extend(payload)
            self._take_messages(stream)

    def _data_frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._bytes) >= FRAME_HEADER:
            length, kind, flags = int.from_bytes(self._bytes[:3], "big"), self._bytes[3], self._bytes[4]
            end = FRAME_HEADER + length
            if len(self._bytes) < end:
                return
            stream = int.from_bytes(self._bytes[5:FRAME_HEADER], "big") & 0x7FFFFFFF
            payload = bytes(self._bytes[FRAME_HEADER:end])
            del self._bytes[:end]
            if kind == DATA and not flags & PADDED:
                yield stream, payload

    def _take_messages(self, stream: int) -> None:
        waiting = self._calls[stream]
        while len(waiting) >= GRPC_PREFIX:
            (length,) = struct.unpack(">I", waiting[1:GRPC_PREFIX])
            if len(waiting) < GRPC_PREFIX + length:
                return
            del waiting[: GRPC_PREFIX + length]
            self._told(stream).append((self._clock(), length))


class Tap:
    """A TCP proxy to `upstream` (HOST:PORT) that listens in. An async context manager. Raises `UserError` for
    an address that is none."""

    def __init__(self, upstream: str) -> None:
        found = host_and_port(upstream)
        if found is None:
            raise UserError(f"{upstream!r} is not HOST:PORT")
        self._upstream = found
        self._talks: dict[tuple[int, int], Talk] = {}  # by connection and HTTP/2 stream
        self._num_connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where edges find the verifier now."""
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def talks(self) -> list[Talk]:
        """The sessions so far, in the order of their beginning."""
        return [talk for talk in self._talks.values() if talk.is_session]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server's callback runs in one"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        number, self._num_connections = self._num_connections, self._num_connections + 1
        there, back = await asyncio.open_connection(*self._upstream)
        clock = asyncio.get_running_loop().time

        def talk(stream: int) -> Talk:
            return self._talks.setdefault((number, stream), Talk())

        up = Reader(clock, lambda stream: talk(stream).up, PREFACE)
        down = Reader(clock, lambda stream: talk(stream).down, b"")
        with contextlib.suppress(asyncio.CancelledError):  # the tap is closed; nobody awaits this task's end
            await asyncio.gather(_pump(reader, back, up), _pump(there, writer, down))
        back.close()
        writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, reader: Reader) -> None:
    """Until one side has gone."""
    try:
        while data := await source.read(65_536):
            reader.feed(data)
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()
