"""An HTTP server in a thread, whose answers a test gives; over TCP or a unix socket."""

import contextlib
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = Callable[["Handler"], None]
"""What a test does with a request: reads it and writes the answer."""


class Handler(BaseHTTPRequestHandler):
    """One request; `body` is what came with it."""

    answer: Answer
    body: bytes
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.close_connection = True
        type(self).answer(self)

    do_POST = do_DELETE = do_HEAD = do_GET

    def reply(self, status: int, data: bytes = b"", **headers: str) -> None:
        """A whole answer; underscores of header names stand for dashes."""
        self.begin(status, **{"Content_Length": str(len(data)), **headers})
        self.wfile.write(data)

    def begin(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()

    def address_string(self) -> str:
        return "test"  # a unix socket has no address

    def log_message(self, *_: object) -> None:
        pass


class _Quiet(socketserver.BaseServer):
    """A client that hangs up is no error here; whatever else breaks is told on standard error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _TcpServer(_Quiet, ThreadingHTTPServer):
    pass


class _UnixServer(_Quiet, socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextlib.contextmanager
def serving(
    answer: Answer, *, unix: Path | None = None, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[str]:
    """A server that answers so; yields HOST:PORT or unix:PATH."""
    handler = type("AnsweringHandler", (Handler,), {"answer": staticmethod(answer)})
    server: socketserver.BaseServer
    if unix is not None:
        server, address = _UnixServer(str(unix), handler), f"unix:{unix}"
    else:
        tcp = _TcpServer((host, 0), handler)
        if tls is not None:
            tcp.socket = tls.wrap_socket(tcp.socket, server_side=True)
        server, address = tcp, f"{host}:{tcp.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
