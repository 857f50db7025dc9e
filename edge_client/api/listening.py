"""The local API on a socket: a loopback port or a unix socket, served by uvicorn in the daemon's own loop.

A program needs no token to open a connection. So a request must arrive in time, and there are fewer
connections than file descriptors. uvicorn limits heads and the time between requests, and logs errors only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.errors import UserError
from common.wire import free_port
from common.wire.grpc_options import host_and_port

UNIX = "unix:"
OWNER_ONLY = 0o177
"""umask of a unix socket, whose permissions control access to the daemon."""

REQUEST_TIME = 20.0
"""Seconds from a connection's or a request's first byte to the end of the request's body."""

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


class Listening:
    """Serves `app` at `listen` (HOST:PORT, port 0 picks one, or unix:PATH) while the block runs.

    `address` holds the bound port. `before` is called after the bind and before the first connection. At the
    end requests under way get `grace` seconds. A request must arrive whole in `request_time` seconds. Raises
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
        request_time: float = REQUEST_TIME,
    ) -> None:
        self.address = listen
        self._before = before
        protocol: Any = partial(HttpConnection, most=most_connections(), request_time=request_time)
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # a program without a token can cause any number of warnings
                access_log=False,
                proxy_headers=False,  # no proxy may set the client's address
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=IDLE_TIME,
                timeout_graceful_shutdown=max(1, round(grace)),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ssl_certfile=cert or None,
                ssl_keyfile=key or None,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Listening:
        bound, self.address = _bind(self.address)
        self._before()
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


# Sockets ----------------------------------------------------------------------------------------------------


def _bind(listen: str) -> tuple[socket.socket, str]:
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
    address = host_and_port(listen)
    if address is None:
        raise UserError(f"the API's address is {listen!r}; it must be HOST:PORT or unix:PATH")
    return free_port.bound(*address)


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


class HttpConnection(H11Protocol):
    """Limits uvicorn's connections to `most`, and the time of each request's arrival."""

    def __init__(self, *args: Any, most: int, request_time: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._most, self._request_time = most, request_time
        self._timer: asyncio.TimerHandle | None = None  # while a request arrives

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        """Start the timer of a request that arrives; stop it for a whole one."""
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._request_time, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """Runs uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
