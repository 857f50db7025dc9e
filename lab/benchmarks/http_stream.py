"""Implements a lean HTTP/1.1 client for event streams: it adds no library's time to a measurement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Self

from common.wire.grpc_options import host_and_port


class BrokenError(Exception):
    """Reports a connection that ended before the answer did, or never opened."""


@dataclass(slots=True)
class HttpAnswer:
    """Holds the head of a response, whose body is still to be read."""

    status: int
    headers: dict[str, str]


class HttpClient:
    """Sends one request on one connection. An async context manager. Raises `BrokenError` if it breaks."""

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._token = token
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answer: HttpAnswer | None = None

    async def __aenter__(self) -> Self:
        place = host_and_port(self._address)
        assert place is not None, "HOST:PORT was given"
        try:
            self._reader, self._writer = await asyncio.open_connection(*place)
        except OSError as error:
            raise BrokenError(f"no connection: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """End the connection at once, by RST if data was on its way."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request; return the head of its answer."""
        assert self._reader is not None, "entered before"
        assert self._writer is not None, "entered before"
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._address}", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"authorization: Bearer {self._token}"] if self._token else []
        try:
            self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise BrokenError(f"no answer: {error}") from error
        first, *rest = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in rest if line)
        self._answer = HttpAnswer(
            int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}
        )
        return self._answer

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        assert self._reader is not None, "entered before"
        assert self._answer is not None, "asked before"
        try:
            if "content-length" in self._answer.headers:
                yield await self._reader.readexactly(int(self._answer.headers["content-length"]))
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise BrokenError(f"the answer broke off: {error}") from error

    async def body(self) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self.chunks()])
