"""Connections of the local API: how many there may be, and how long a request may take to arrive.

A program needs no token to open a connection. So a request's head has a time limit, its body another, and
there are fewer connections than file descriptors. When all places are taken, a newcomer gets the place of the
connection that has waited longest for its peer: for a whole request, or for its response to be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

logger = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that the kernel keeps for a daemon that is busy for a moment."""

MOST_CONNECTIONS = 1024
"""At once: more than programs of one machine need."""

MOST_DESCRIPTORS = 65_536
"""Asked for at the start. Some systems allow millions, and some programs walk through all of them."""

ACCEPT_PAUSE = 0.5
"""Seconds until connections are accepted again, when the system has no descriptor or memory for one."""

SELDOM = 60.0
"""Seconds between two log lines about the same trouble with connections."""


def raise_descriptor_limit() -> None:
    """Raise this process's limit on descriptors to its user's, or to `MOST_DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Places for connections: half of the descriptors stay free for verifiers, files and processes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(1, soft // 2))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may take, in seconds."""

    head: float = 10.0  # for a TLS handshake, and for a request's line and headers
    body: float = 30.0  # from there to the body's end


class Connections:
    """The connections of one server, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = set[Connection]()
        self._waiting = OrderedDict[Connection, None]()  # for their peers; the longest first

    def admit(self, connection: Connection) -> bool:
        """Give it a place, if need be that of a connection that waits for its peer. False: there is none."""
        if len(self._open) >= self._most:
            if not self._waiting:
                return False
            logger.warning("! %d connections are open; those that wait for their peers make way", self._most)
            oldest = next(iter(self._waiting))
            self.left(oldest)
            oldest.cut()
        self._open.add(connection)
        self.waits(connection)
        return True

    def waits(self, connection: Connection) -> None:
        """From now on it waits for its peer: for a whole request, or for its response to be read."""
        if connection in self._open:
            self._waiting[connection] = None
            self._waiting.move_to_end(connection)

    def serves(self, connection: Connection) -> None:
        """Its request is whole, and its peer reads the response."""
        self._waiting.pop(connection, None)

    def left(self, connection: Connection) -> None:
        """Its place is free."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def cut_unmade(self) -> None:
        """Cut connections that have no transport yet: uvicorn does not know of them."""
        for each in [each for each in self._open if not each.is_made]:
            each.cut()


class Part(Enum):
    """How far a connection's request has come."""

    HEAD = "head"
    BODY = "body"
    WHOLE = "whole"  # its response is under way
    REST = "rest"  # between two requests


class Connection(H11Protocol):
    """uvicorn's connection, with a time limit for each part of a request. uvicorn itself bounds the time
    between requests."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        patience: Patience,
        connections: Connections,
        accepted: socket.socket,
    ) -> None:
        super().__init__(config, state, app_state)
        self.accepted = accepted
        self.is_made = False  # has a transport, after its handshake if there is one
        self._patience, self._all, self._is_cut = patience, connections, False
        self._part: Part | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Close it at once. A handshake that is under way fails by that."""
        self._is_cut = True
        if self.is_made:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # the peer was faster
                self.accepted.shutdown(socket.SHUT_RDWR)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self.is_made = True
        if self._is_cut:
            transport.abort()
        self._look(Part.HEAD)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look(Part.HEAD)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look(Part.HEAD if self.conn.trailing_data[0] else Part.REST)

    def pause_writing(self) -> None:
        """The peer reads more slowly than the response comes."""
        super().pause_writing()
        self._all.waits(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._part is Part.WHOLE:
            self._all.serves(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        self._all.left(self)
        super().connection_lost(exc)

    def _look(self, idle: Part) -> None:
        """Note which part of a request is coming: `idle` where h11 waits for a request's first line."""
        part = {h11.IDLE: idle, h11.SEND_BODY: Part.BODY}.get(self.conn.their_state, Part.WHOLE)
        if part is self._part:
            return
        self._part = part
        self._forget_timer()
        if part is Part.WHOLE:
            if not self.flow.write_paused:
                self._all.serves(self)
            return
        self._all.waits(self)
        times = {Part.HEAD: self._patience.head, Part.BODY: self._patience.body}
        if part in times and not self.transport.is_closing():
            self._timer = self.loop.call_later(times[part], self.cut)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ListeningServer(uvicorn.Server):
    """uvicorn's server. It leaves signals to the daemon and accepts connections one by one.

    asyncio's own server does not bound connections. When descriptors run out, it repeats a log line for each
    entry of its backlog.
    """

    def __init__(self, config: Config, patience: Patience, most: int) -> None:
        super().__init__(config)
        self._patience, self._connections = patience, Connections(most)
        self._doors: list[asyncio.Task[None]] = []
        self._opening = set[asyncio.Task[None]]()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        for each in sockets or ():
            each.setblocking(False)
            each.listen(BACKLOG)
            door = asyncio.create_task(self._accept(each))
            door.add_done_callback(self._closed)
            self._doors.append(door)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for door in self._doors:
            door.cancel()
        await asyncio.gather(*self._doors, return_exceptions=True)
        self._connections.cut_unmade()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("! no connection can be accepted now: %s", error.strerror or error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            connection = Connection(
                self.config,
                self.server_state,
                self.lifespan.state,
                self._patience,
                self._connections,
                accepted,
            )
            if self._connections.admit(connection):
                opening = loop.create_task(self._open(connection))
                self._opening.add(opening)
                opening.add_done_callback(self._opening.discard)
            else:
                logger.warning("! a connection is refused: all others have a request under way")
                accepted.close()
            await asyncio.sleep(0)  # `sock_accept` may never wait, and what was cut has to be closed

    async def _open(self, connection: Connection) -> None:
        """Hand the connection its transport; over TLS a handshake comes first, which may fail."""
        context: ssl.SSLContext | None = self.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                connection.accepted,
                ssl=context,
                ssl_handshake_timeout=self._patience.head if context is not None else None,
            )
        except OSError as error:
            logger.debug("x a connection was not made: %s", error)
        finally:
            if not connection.is_made:
                self._connections.left(connection)

    def _closed(self, door: asyncio.Task[None]) -> None:
        """End the server if it cannot accept connections any more."""
        if not door.cancelled() and (error := door.exception()) is not None:
            logger.error("! no connection is accepted any more", exc_info=error)
            self.should_exit = True


class Seldom(logging.Filter):
    """Lets each warning of a logger through once in `SELDOM` seconds. A program without a token can cause any
    number of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}  # by format, of which there are few

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        now = self._clock()
        if now - self._last.get(str(record.msg), -SELDOM) < SELDOM:
            return False
        self._last[str(record.msg)] = now
        return True
