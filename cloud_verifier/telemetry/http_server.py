"""Serve metrics, probes and live sessions to operators by HTTP, on a port of its own.

The event loop answers, so any answer proves that it runs. A connection carries one request and has a time
limit. Nothing identifies callers, so live sessions are shown to this machine alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder

from cloud_verifier.telemetry.collector import registry
from cloud_verifier.telemetry.snapshot import Snapshot, overview
from common.errors import UserError
from common.wire.options import is_loopback

logger = logging.getLogger(__name__)

CLIENT_TIME = 10.0
"""Seconds from a connection's begin to its end. Prometheus gives up after 10 s as well."""

MAX_CLIENTS = 64
"""Connections at once. A new one replaces the oldest. An answer takes milliseconds, so the oldest one belongs
to a slow client."""

MAX_HEAD_BYTES = 16 * 1024
"""Limit on a request's line and headers."""

TEXT, JSON = "text/plain; charset=utf-8", "application/json"

Page = tuple[HTTPStatus, str, bytes]
"""Status, content type and body of an answer."""


class HttpServer:
    """Serves `/metrics`, `/livez`, `/readyz` and `/sessions`. An async context manager; inside, `port` is the
    actual port.

    The server listens on `host` and `port` (port 0 picks one). `take` and `why_not_ready` are called in the
    running event loop; `why_not_ready` is `VerifyScheduler.why_not_ready`. Raises `UserError` if it cannot
    listen.
    """

    def __init__(
        self, take: Callable[[], Snapshot], why_not_ready: Callable[[], str], host: str, port: int
    ) -> None:
        self._take = take
        self._why_not_ready = why_not_ready
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._clients = dict[asyncio.Task[None], None]()  # the oldest first
        self._one_page = asyncio.Lock()  # of metrics: some 5 ms of processor time and 0.5 MB each
        self._logged = ""  # the reason that was logged last

    async def __aenter__(self) -> HttpServer:
        loop = asyncio.get_running_loop()
        try:
            places = await loop.getaddrinfo(self._host.strip("[]"), self.port, type=socket.SOCK_STREAM)
            host = str(places[0][4][0])  # the first one alone: a system may lack the other family
            self._server = await asyncio.start_server(self._connected, host, self.port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            words = "it is in use, or not an address of this machine; choose another --http HOST:PORT"
            raise UserError(f"cannot listen on {self._host}:{self.port}: {words}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        self._server.close()
        clients = [*self._clients]
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in its own task."""
        task = asyncio.current_task()
        assert task is not None, "it is a task"
        if len(self._clients) >= MAX_CLIENTS:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        self._clients[task] = None
        try:
            async with asyncio.timeout(CLIENT_TIME):
                await self._answer(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the client left, is too slow, or sends no HTTP
        except asyncio.CancelledError:
            pass  # replaced, or the server ends; asyncio 3.11 logs a handler that is cancelled as an error
        finally:
            self._clients.pop(task, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.split("\r\n")
        pairs = (field.partition(":") for field in fields)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        method, path, *_ = [*line.split(" "), ""]
        peer, *_ = writer.get_extra_info("peername") or ("",)  # none: it has left already
        try:
            status, kind, body = await self._page(method, path.partition("?")[0], headers, peer)
        except Exception:  # outermost frame of a request
            logger.exception("! a request failed")
            status, kind, body = _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect; the log has more")
        answer = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        writer.write(answer.encode() + (b"" if method == "HEAD" else body))
        writer.close()
        await writer.wait_closed()

    async def _page(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> Page:
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
        match path:
            case "/metrics":
                encode, kind = choose_encoder(headers.get("accept", ""))
                async with self._one_page:
                    body = await asyncio.to_thread(encode, registry(self._take()))
                return HTTPStatus.OK, kind, body
            case "/livez":
                return _plain(HTTPStatus.OK, "ok")
            case "/readyz":
                why_not = self._ask_ready()
                return _plain(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, why_not or "ok")
            case "/sessions":
                if not _is_local(peer, headers.get("host", "")):
                    return _plain(HTTPStatus.FORBIDDEN, "only for this machine; use ssh -L or port-forward")
                return HTTPStatus.OK, JSON, json.dumps(overview(self._take())).encode()
            case _:
                return _plain(HTTPStatus.NOT_FOUND, "only /metrics, /livez, /readyz and /sessions are here")

    def _ask_ready(self) -> str:
        """Return why no session would be admitted; empty if one would. Log each change."""
        why_not = self._why_not_ready()
        if bool(why_not) != bool(self._logged):
            logger.info("%s", f"! not ready: {why_not}" if why_not else "> ready again")
        self._logged = why_not
        return why_not


def _plain(status: HTTPStatus, words: str) -> Page:
    return status, TEXT, f"{words}\n".encode()


def _is_local(peer: str, host: str) -> bool:
    """Tell whether a request comes from this machine. A page in a browser can come from here under its own
    site's name (DNS rebinding), so `host`, the request's Host, must be a loopback one too."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(peer) and is_loopback(name.lower())
