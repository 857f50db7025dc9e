"""The local API on a socket: a loopback port or a unix socket, served by uvicorn in the daemon's own loop.

A program needs no token to open a connection. So a request's head has a time limit, its body another, and
there are fewer connections than file descriptors. When all places are taken, a newcomer gets the place of the
connection that has waited longest for its peer: for a whole request, or for its response to be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from common.errors import UserError
from common.wire.options import host_and_port

logger = logging.getLogger(__name__)

UNIX = "unix:"
OWNER_ONLY = 0o177
"""umask of a unix socket, whose permissions control access to the daemon."""

IDLE_TIME = 75
"""Seconds of an idle connection between requests. SDKs keep connections for a minute."""

MAX_HEAD_BYTES = 64 * 1024
"""Limit on a request's line and headers."""

BACKLOG = 128
"""Connections that the kernel queues while the daemon is busy."""

MOST_CONNECTIONS = 1024
"""Limit on simultaneous connections, above the needs of one machine's programs."""

MOST_DESCRIPTORS = 65_536
"""Descriptors to request at the start. Some systems allow millions, and some programs iterate over all."""

ACCEPT_PAUSE = 0.5
"""Seconds until the next attempt to accept, after the system lacked a descriptor or memory."""

SELDOM = 60.0
"""Seconds between two log lines about the same fault of connections."""

SEEN_BY_STRANGERS = ("uvicorn.error", __name__)
"""Loggers of connection events, which need no token."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Sets time limits of a connection, in seconds."""

    head: float = 10.0  # TLS handshake, and a request's line and headers
    body: float = 30.0  # from there to the body's end


class Listening:
    """Serves `app` at `listen` (HOST:PORT, port 0 picks one, or unix:PATH) while the block runs.

    `address` holds the bound port. `before` is called after the bind and before the first connection. At the
    end requests under way get `grace` seconds. `patience` limits the time for a request to arrive. Raises
    `UserError` if the address cannot be listened on.
    """

    def __init__(
        self,
        app: ASGIApp,
        listen: str,
        *,
        grace: float = 0.0,
        cert: str = "",
        key: str = "",
        before: Callable[[], object] = lambda: None,
        patience: Patience | None = None,
    ) -> None:
        self.address = listen
        self._before = before
        self._server = ListeningServer(
            uvicorn.Config(
                app,
                loop="none",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # no proxy may set the client's address
                server_header=False,
                timeout_keep_alive=IDLE_TIME,
                timeout_graceful_shutdown=max(1, round(grace)),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ssl_certfile=cert or None,
                ssl_keyfile=key or None,
            ),
            patience or Patience(),
        )
        self._seldom = Seldom()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Listening:
        bound, self.address = _bind(self.address)
        self._before()
        for each in SEEN_BY_STRANGERS:
            logging.getLogger(each).addFilter(self._seldom)
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise UserError(f"the API could not be started at {self.address}")
            await asyncio.sleep(0.005)  # uvicorn reports its start only by this flag
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "entered before"
        self._server.should_exit = True
        await asyncio.wait([self._task])
        for each in SEEN_BY_STRANGERS:
            logging.getLogger(each).removeFilter(self._seldom)
        if self.address.startswith(UNIX):
            path = Path(self.address.removeprefix(UNIX))
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def wait(self) -> None:
        """Wait until the server stops. Raises the error that stopped it."""
        assert self._task is not None, "entered before"
        await asyncio.shield(self._task)

    def close(self) -> None:
        """Accept no more connections. Open ones end with their responses."""
        self._server.should_exit = True

    def cut(self) -> None:
        """Cut the remaining connections."""
        for connection in [*self._server.server_state.connections]:
            connection.transport.abort()


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether to log. Leave out responses cut by the daemon's stop, which uvicorn logs as errors."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Seldom(logging.Filter):
    """Passes each warning once in `SELDOM` seconds, because a program without a token can cause many."""

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


# Sockets ----------------------------------------------------------------------------------------------------


def _bind(listen: str) -> tuple[socket.socket, str]:
    """Return the socket and its address."""
    try:
        if listen.startswith(UNIX):
            return _unix_socket(Path(listen.removeprefix(UNIX))), listen
        bound = _tcp_socket(listen)
    except OSError as error:
        raise UserError(
            f"cannot listen on {listen}: {error.strerror or error}; choose another (--listen)"
        ) from error
    host, port = bound.getsockname()[:2]
    return bound, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tcp_socket(listen: str) -> socket.socket:
    found = host_and_port(listen)
    if found is None:
        raise UserError(f"the API's address is {listen!r}; it must be HOST:PORT or unix:PATH")
    host, port = found
    family, kind, protocol, _, place = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError:
        bound.close()
        raise
    return bound


def _unix_socket(path: Path) -> socket.socket:
    """Bind a unix socket. Replace a stale socket file, and refuse one that is served."""
    if path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(f"{path} exists and is not a socket; choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            raise UserError(f"another daemon serves {path}; stop it, or choose another path")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(OWNER_ONLY)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound


# Connections ------------------------------------------------------------------------------------------------


def raise_descriptor_limit() -> None:
    """Raise this process's limit on descriptors to its user's, or to `MOST_DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return the limit on connections. Half of the descriptors stay free for verifiers and files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(1, soft // 2))


class RequestPart(Enum):
    """Names the part of a request that a connection is waiting for."""

    HEAD = "head"
    BODY = "body"
    WHOLE = "whole"  # its response is under way
    REST = "rest"  # between two requests


class HttpConnection(H11Protocol):
    """Adds a time limit for each part of a request to uvicorn's connection. uvicorn itself limits the time
    between requests."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        server: ListeningServer,
        accepted: socket.socket,
    ) -> None:
        super().__init__(config, state, app_state)
        self.accepted = accepted
        self.is_made = False  # has a transport, after its handshake if there is one
        self._server, self._is_cut = server, False
        self._part: RequestPart | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Close the connection at once. A handshake under way fails."""
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
        self._look(RequestPart.HEAD)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look(RequestPart.HEAD)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look(RequestPart.HEAD if self.conn.trailing_data[0] else RequestPart.REST)

    def pause_writing(self) -> None:
        """Note that the peer reads more slowly than the response is written."""
        super().pause_writing()
        self._server.waits(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._part is RequestPart.WHOLE:
            self._server.serves(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        self._server.left(self)
        super().connection_lost(exc)

    def _look(self, idle: RequestPart) -> None:
        """Note the awaited part of a request: `idle` if h11 waits for the first line."""
        part = {h11.IDLE: idle, h11.SEND_BODY: RequestPart.BODY}.get(self.conn.their_state, RequestPart.WHOLE)
        if part is self._part:
            return
        self._part = part
        self._forget_timer()
        if part is RequestPart.WHOLE:
            if not self.flow.write_paused:
                self._server.serves(self)
            return
        self._server.waits(self)
        patience = self._server.patience
        times = {RequestPart.HEAD: patience.head, RequestPart.BODY: patience.body}
        if part in times and not self.transport.is_closing():
            self._timer = self.loop.call_later(times[part], self.cut)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ListeningServer(uvicorn.Server):
    """Runs uvicorn's server without its signal handlers, and accepts connections one by one.

    asyncio's own server does not limit connections. Without descriptors it logs a line for each entry of its
    backlog.
    """

    def __init__(self, config: Config, patience: Patience) -> None:
        super().__init__(config)
        self.patience = patience
        self._most = most_connections()
        self._open = set[HttpConnection]()
        self._waiting = OrderedDict[HttpConnection, None]()  # for their peers; the longest wait first
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
        for each in [each for each in self._open if not each.is_made]:
            each.cut()  # uvicorn has no record of them
        await super().shutdown(sockets)

    def waits(self, connection: HttpConnection) -> None:
        """Note that the connection waits for its peer from now on."""
        if connection in self._open:
            self._waiting[connection] = None
            self._waiting.move_to_end(connection)

    def serves(self, connection: HttpConnection) -> None:
        """Note that the connection's request is whole and its peer reads the response."""
        self._waiting.pop(connection, None)

    def left(self, connection: HttpConnection) -> None:
        """Free the place of a closed connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def _admit(self, connection: HttpConnection) -> bool:
        """Give a connection a place, if need be a waiting one's. Return False without any."""
        if len(self._open) >= self._most:
            if not self._waiting:
                return False
            logger.warning("! %d connections are open; new ones replace waiting ones", self._most)
            oldest = next(iter(self._waiting))
            self.left(oldest)
            oldest.cut()
        self._open.add(connection)
        self.waits(connection)
        return True

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_peer(listener)
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:  # the peer has left
                continue
            except OSError as error:
                logger.warning("! no connection can be accepted now: %s", error.strerror or error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            accepted.setblocking(False)
            connection = HttpConnection(self.config, self.server_state, self.lifespan.state, self, accepted)
            if self._admit(connection):
                opening = loop.create_task(self._make(connection))
                self._opening.add(opening)
                opening.add_done_callback(self._opening.discard)
            else:
                logger.warning("! a connection is refused: all open ones have a request under way")
                accepted.close()

    @staticmethod
    async def _wait_for_peer(listener: socket.socket) -> None:
        """Return when a connection can be accepted.

        asyncio's `sock_accept`, if cancelled, leaks a connection that it has just accepted."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(listener, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(listener)

    async def _make(self, connection: HttpConnection) -> None:
        """Give the connection its transport, over TLS after a handshake, which may fail."""
        context: ssl.SSLContext | None = self.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                connection.accepted,
                ssl=context,
                ssl_handshake_timeout=self.patience.head if context is not None else None,
            )
        except OSError as error:
            logger.debug("x a connection was not made: %s", error)
        finally:
            if not connection.is_made:
                self.left(connection)

    def _closed(self, door: asyncio.Task[None]) -> None:
        """End the server if it can accept no more connections."""
        if not door.cancelled() and (error := door.exception()) is not None:
            logger.error("! the server can accept no more connections", exc_info=error)
            self.should_exit = True
