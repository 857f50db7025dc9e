"""Serve metrics, probes and live sessions to operators by HTTP, on a port of its own.

Threads serve the clients and ask the verifier's event loop for each page, so an answer proves that the loop
runs. Nothing identifies callers, so live sessions are shown to this machine alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from cloud_verifier.telemetry.collector import registry
from cloud_verifier.telemetry.snapshot import Snapshot, overview
from common.errors import UserError
from common.wire.grpc_options import is_loopback

logger = logging.getLogger(__name__)

CLIENT_TIME = 10.0
"""Seconds that a client may be silent, and that the event loop may take. Prometheus waits as long."""

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
        self._logged = ""  # the reason that was logged last

    async def __aenter__(self) -> HttpServer:
        self._loop = asyncio.get_running_loop()
        try:
            self._server = await asyncio.to_thread(_listening, self._host.strip("[]"), self.port)
        except OSError as error:
            words = "it is in use, or not an address of this machine; choose another --http HOST:PORT"
            raise UserError(f"cannot listen on {self._host}:{self.port}: {words}") from error
        self.port = self._server.server_port
        self._server.set_app(self._app)
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request, in a thread of its own."""
        asked = asyncio.run_coroutine_threadsafe(self._page(environ), self._loop)
        try:
            page = asked.result(CLIENT_TIME)
        except TimeoutError:
            page = _plain(HTTPStatus.SERVICE_UNAVAILABLE, "the verifier's event loop does not answer")
        except Exception:  # outermost frame of a request
            logger.exception("! a request failed")
            page = _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect; the log has more")
        if isinstance(page, CollectorRegistry):
            exposed: Iterable[bytes] = make_wsgi_app(page)(environ, start_response)
            return exposed
        status, kind, body = page
        fields = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        start_response(f"{status.value} {status.phrase}", fields)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    async def _page(self, environ: dict[str, Any]) -> Page | CollectorRegistry:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
        match environ["PATH_INFO"]:
            case "/metrics":
                return registry(self._take())
            case "/livez":
                return _plain(HTTPStatus.OK, "ok")
            case "/readyz":
                why_not = self._ask_ready()
                return _plain(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, why_not or "ok")
            case "/sessions":
                if not _is_local(environ["REMOTE_ADDR"], environ.get("HTTP_HOST", "")):
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


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIME

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scraper asks every few seconds."""


class _PageServer(ThreadingWSGIServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client left, is too slow, or sends no HTTP."""


def _listening(host: str, port: int) -> _PageServer:
    """Return a server that listens. Raises `OSError`."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server: type[_PageServer] = type("_FamilyServer", (_PageServer,), {"address_family": family})
    return server((str(address[0]), port), _Handler)


def _plain(status: HTTPStatus, words: str) -> Page:
    return status, TEXT, f"{words}\n".encode()


def _is_local(peer: str, host: str) -> bool:
    """Tell whether a request comes from this machine. A page in a browser can come from here under its own
    site's name (DNS rebinding), so `host`, the request's Host, must be a loopback one too."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(peer) and is_loopback(name.lower())
