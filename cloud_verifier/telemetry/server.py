"""The page that Prometheus reads, on a port of its own: HTTP in a few threads, and nothing but `/metrics`.

gRPC cannot carry it. No thread of it ever keeps the event loop from its work: it asks the loop for a snapshot
and waits, the loop does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from cloud_verifier.telemetry.collector import registry
from cloud_verifier.telemetry.snapshot import Snapshot
from common.errors import UserError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"

PATIENCE = 5.0
"""Seconds that a scrape waits for the event loop, and a thread for a client's next byte. Prometheus itself
gives up after 10."""

CONNECTION_TIME = 20.0
"""Seconds from a connection's first byte to its end, however its client trickles or reads."""

MAX_CLIENTS = 8
"""Connections at once. One or two Prometheus servers scrape a verifier. A newcomer takes the place of the
oldest one whose request has not come whole; if there is none, it is closed unread."""

GIVEN_UP = 1.0
"""Seconds until a connection that was cut has given its place back."""

POLL = 0.1
"""Seconds until the listening thread notices that it should end."""


class MetricsServer:
    """Serves what `take` returns, which is called in the running event loop. An async context manager; `port`
    is known inside.

    `host` and `port` are where it listens (port 0 picks one). Raises `UserError` if it cannot.
    """

    def __init__(self, take: Callable[[], Snapshot], host: str, port: int) -> None:
        self._take = take
        self._host = host
        self.port = port
        self._http: _HttpServer | None = None

    async def __aenter__(self) -> MetricsServer:
        loop = asyncio.get_running_loop()
        app = make_app(registry(lambda: _taken_in(loop, self._take)))
        self._http = await loop.run_in_executor(None, _listen, self._host, self.port, app)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(POLL,), name="metrics", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None, "entered before"
        await asyncio.get_running_loop().run_in_executor(None, self._http.shutdown)
        self._http.server_close()


def make_app(metrics: CollectorRegistry) -> WSGIApplication:
    """`/metrics` as prometheus_client serves it, and 404 for all else."""
    page = make_wsgi_app(metrics)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return _sentence(start_response, "404 Not Found", f"Only {PATH} is here.")
        try:
            found: Iterable[bytes] = page(environ, start_response)
        except TimeoutError:
            words = f"The verifier has not answered within {PATIENCE:g} s."
            return _sentence(start_response, "503 Service Unavailable", words)
        return found

    return app


def _sentence(start_response: StartResponse, status: str, words: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [words.encode() + b"\n"]


def _taken_in(loop: asyncio.AbstractEventLoop, take: Callable[[], Snapshot]) -> Snapshot:
    """What `take` returns there. Raises `TimeoutError` if the loop has no time."""

    async def call() -> Snapshot:
        return take()

    future = asyncio.run_coroutine_threadsafe(call(), loop)
    try:
        return future.result(PATIENCE)
    finally:
        future.cancel()


def _listen(host: str, port: int, app: WSGIApplication) -> _HttpServer:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _HttpServer(family, address)
    except OSError as error:
        raise UserError(
            f"metrics cannot be served on {host}:{port}: {error.strerror or error}; choose another HOST:PORT"
        ) from error
    server.set_app(app)
    return server


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    """Writes no log, and waits for nobody for long."""

    timeout = PATIENCE

    def setup(self) -> None:
        """Begin the connection's time."""
        super().setup()
        self._cutter = threading.Timer(CONNECTION_TIME, _cut, (self.connection,))
        self._cutter.daemon = True
        self._cutter.start()

    def parse_request(self) -> bool:
        """Its request is whole if this is true."""
        whole = super().parse_request()
        cast("_HttpServer", self.server).serves(self.connection)
        return whole

    def finish(self) -> None:
        """End it."""
        self._cutter.cancel()
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


class _HttpServer(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few."""

    daemon_threads = True

    def __init__(self, family: int, address: Any) -> None:
        self.address_family = family
        self._places = threading.BoundedSemaphore(MAX_CLIENTS)
        self._reading = dict[socket.socket, None]()  # whose request has not come whole, the oldest first
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking the name service for this machine, as `HTTPServer` does: that may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def serves(self, connection: socket.socket) -> None:
        """Its request is whole."""
        with self._lock:
            self._reading.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_place():
            self.shutdown_request(request)
            return
        with self._lock:
            self._reading[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started, so none will give the place back
            self._leave(request)
            raise

    def _has_place(self) -> bool:
        """Take a place, if need be that of the oldest connection without a whole request."""
        if self._places.acquire(blocking=False):
            return True
        with self._lock:
            oldest = next(iter(self._reading), None)
            if oldest is None:
                return False
            del self._reading[oldest]
        _cut(oldest)
        return self._places.acquire(timeout=GIVEN_UP)

    def _leave(self, request: Any) -> None:
        self.serves(request)
        self._places.release()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle, or stayed silent: nothing to be done."""
