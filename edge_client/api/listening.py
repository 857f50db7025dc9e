"""The local API on a socket: a loopback port or a unix socket, served by uvicorn in the daemon's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from common.address import host_and_port
from common.errors import UserError
from edge_client.api.connections import ListeningServer, Patience, Seldom, most_connections

UNIX = "unix:"
OWNER_ONLY = 0o177
"""umask: a unix socket's rights say who may use the daemon."""

IDLE_TIME = 75
"""Seconds that a connection may rest between requests; SDKs keep theirs for a minute."""

SEEN_BY_STRANGERS = ("uvicorn.error", "edge_client.api.connections")
"""Loggers that tell of connections, for which no token is needed."""

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether it is none of a response that was ended because the daemon ends: uvicorn logs a traceback of
    each as an error of the application."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Listening:
    """Serves `app` at `listen` (HOST:PORT, port 0 picks one, or unix:PATH) while the block runs.

    `address` is where, with the port as bound. `before` is called when the address is ours and nobody has
    been let in yet. At the end requests under way get `grace` seconds. `patience` bounds the time in which a
    request comes. Raises `UserError` if the address cannot be listened on.
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
        self._listen = listen
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
                proxy_headers=False,  # nothing in front may say who asks
                server_header=False,
                timeout_keep_alive=IDLE_TIME,
                timeout_graceful_shutdown=max(1, round(grace)),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ssl_certfile=cert or None,
                ssl_keyfile=key or None,
            ),
            patience or Patience(),
            most_connections(),
        )
        self._seldom = Seldom()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Listening:
        bound = self._bind()
        self._before()
        for each in SEEN_BY_STRANGERS:
            logging.getLogger(each).addFilter(self._seldom)
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise UserError(f"the API could not be started at {self._listen}")
            await asyncio.sleep(0.005)  # uvicorn tells by this flag alone
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "entered before"
        self._server.should_exit = True
        await asyncio.wait([self._task])
        for each in SEEN_BY_STRANGERS:
            logging.getLogger(each).removeFilter(self._seldom)
        if self._listen.startswith(UNIX):
            _remove(Path(self._listen.removeprefix(UNIX)))

    async def wait(self) -> None:
        """Until it stops serving. Raises what stopped it."""
        assert self._task is not None, "entered before"
        await asyncio.shield(self._task)

    def _bind(self) -> socket.socket:
        try:
            if self._listen.startswith(UNIX):
                return _unix_socket(Path(self._listen.removeprefix(UNIX)))
            bound = _tcp_socket(self._listen)
        except OSError as error:
            raise UserError(
                f"cannot listen on {self._listen}: {error.strerror or error}; choose another address"
            ) from error
        host, port = bound.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return bound


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


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _unix_socket(path: Path) -> socket.socket:
    """A stale socket file makes way; one that somebody serves does not."""
    if path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(f"{path} is there and is no socket; choose another path")
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
