"""A client of the daemon's HTTP API, for the commands beside it: over TCP or a unix socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.wire.grpc_options import host_and_port
from edge_client.process import run_file as daemon_file
from edge_client.process.paths import read_token
from edge_client.process.run_file import DaemonRecord

UNIX = "unix:"
ANSWER_TIMEOUT = 10.0
"""Seconds to wait for an answer; the daemon answers from memory."""

EVENT_TIMEOUT = 60.0
"""Seconds to wait for a stream's next line; the daemon sends a comment at least every ten."""

LARGEST_ANSWER = 64 << 20  # bytes
READ_SIZE = 1 << 16  # bytes at once, at most
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared only
"""The local address of a daemon that listens on all addresses."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """Holds one event of a stream (server-sent events, WHATWG HTML 9.2)."""

    data: str
    event: str = "message"
    id: str = ""

    def json(self) -> Any:
        """Return the data as JSON. Raise `PeerError` if it is not JSON."""
        return _decoded(self.data)


def connect(path: Path) -> LocalClient:
    """Return a client of the daemon in the run file `path`. Raise `UnavailableError` if none runs."""
    record = daemon_file.read(path)
    if record is None:
        raise UnavailableError(f"no edge daemon is running; {daemon_file.HOW_TO_START}")
    return client_of(record)


def client_of(record: DaemonRecord) -> LocalClient:
    """Return a client of this daemon, with its token. Raise `UserError` for an unreadable token."""
    token = read_token(Path(record.token_file)) if record.token_file else ""
    return LocalClient(record.listen, token, tls_cert=record.tls_cert)


def url_of(record: DaemonRecord) -> str:
    """Return the daemon's URL for other programs. Raise `UserError` if only ours can reach it."""
    if record.listen.startswith(UNIX) or record.tls_cert:
        words = "a unix socket" if not record.tls_cert else "TLS with a certificate of its own"
        raise UserError(
            f"the daemon at {record.listen} uses {words}, which other programs do not know; "
            "let it listen at 127.0.0.1:PORT without TLS for them"
        )
    host, _, port = record.listen.rpartition(":")
    name = host.strip("[]")
    local = ANYWHERE.get(name, name)
    return f"http://{f'[{local}]' if ':' in local else local}:{port}"


class LocalClient:
    """Calls one daemon, or another server that messages call `name`, with a connection per request. Every
    failure is a `ForerunError` in a sentence."""

    def __init__(
        self,
        address: str,
        token: str = "",
        *,
        tls_cert: str = "",
        timeout: float = ANSWER_TIMEOUT,
        name: str = "daemon",
    ) -> None:
        """`address`: HOST:PORT or unix:PATH. `tls_cert`: the daemon's own certificate, if it uses TLS."""
        self.address = address
        self._name = name
        self._token = token
        self._timeout = timeout
        self._tls = _pinned(tls_cert) if tls_cert else None

    def get(self, path: str) -> Any:
        """Return the JSON at `path`, or the text if it has another type."""
        return self._ask("GET", path)

    def post(self, path: str, body: object = None) -> Any:
        """Post this body and return the JSON answer."""
        return self._ask("POST", path, body)

    def delete(self, path: str) -> Any:
        """Delete `path` and return the JSON answer."""
        return self._ask("DELETE", path)

    def events(self, path: str, body: object = None) -> Iterator[ServerEvent]:
        """Yield a stream's events as they come: of a POST with this body, of a GET without. Closing the
        iterator hangs up. Raise as `get`, and `UnavailableError` if the stream breaks."""
        method = "GET" if body is None else "POST"
        wanted = {"Accept": "text/event-stream"}
        with self._answer(method, path, body, wanted, EVENT_TIMEOUT) as answer:
            kind = answer.headers.get_content_type()
            if kind != "text/event-stream":
                raise PeerError(f"{self.address}{path} answered {kind}, not a stream of events")
            yield from _events(answer)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        with self._answer(method, path, body, {"Accept": "application/json"}, self._timeout) as answer:
            text = _text(answer)
            return _decoded(text) if answer.headers.get_content_type() == "application/json" else text

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: object, headers: dict[str, str], timeout: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Return the head of a good answer. Report any failure inside as this daemon's."""
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(timeout)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _refusal(self._name, answer, _text(answer))
            yield answer
        except TimeoutError as error:
            raise UnavailableError(
                f"the {self._name} at {self.address} did not answer in time; check its log",
                Code.DEADLINE_EXCEEDED,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"the {self._name} at {self.address} cannot be reached: {_words(error)}"
            ) from error
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.address.startswith(UNIX):
            return _UnixConnection(self.address.removeprefix(UNIX), timeout)
        host_port = host_and_port(self.address)
        if host_port is None:
            raise UserError(
                f"{self.address!r} is no {self._name}'s address; it must be HOST:PORT or unix:PATH"
            )
        host, port = host_port[0].strip("[]"), host_port[1]
        host = ANYWHERE.get(host, host)
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)


class _UnixConnection(http.client.HTTPConnection):
    """Speaks HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)  # the name that stands in `Host`
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _pinned(certificate: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only this file, whatever name or authority it has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(certificate)
    except OSError as error:
        raise UserError(f"the daemon's certificate {certificate} cannot be read: {error}") from error
    return context


def _events(answer: http.client.HTTPResponse) -> Iterator[ServerEvent]:
    """Parse events, which end with an empty line; drop an incomplete last one."""
    event, data, last_id = "", list[str](), ""
    for line in _lines(answer):
        text = line.decode("utf-8", "replace").removesuffix("\r")
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if not text:
            if data:
                yield ServerEvent("\n".join(data), event or "message", last_id)
            event, data = "", []
        elif name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id" and "\0" not in value:
            last_id = value


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Split lines by `read1`: the response's own `readline` takes a broken chunk for the end."""
    begun = b""
    while data := answer.read1(READ_SIZE):
        *whole, begun = (begun + data).split(b"\n")
        yield from whole


def _text(answer: http.client.HTTPResponse) -> str:
    data = answer.read(LARGEST_ANSWER)
    if answer.length:  # bytes missing of the announced length
        raise http.client.IncompleteRead(data, answer.length)
    return data.decode("utf-8", "replace")


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PeerError(f"the answer is not JSON: {text[:80]!r}") from error


def _refusal(name: str, answer: http.client.HTTPResponse, text: str) -> ForerunError:
    """Return the error of a status and its body."""
    words = _message_of(text) or f"{answer.status} {answer.reason}"
    if answer.status in (401, 403):
        return UserError(f"the {name} does not let this command in: {words}", Code.FAILED_PRECONDITION)
    if answer.status == 404:
        return UserError(words, Code.NOT_FOUND)
    if answer.status == 429:
        return CapacityError(words, retry_after=_seconds(answer.getheader("Retry-After")))
    if answer.status in (502, 503, 504):
        return UnavailableError(words)
    return UserError(words) if answer.status < 500 else LocalError(words)


def _message_of(text: str) -> str:
    """Return the message of {"error": {"message": ...}}, as in OpenAI's API; empty if there is none."""
    try:
        body = json.loads(text)
        message = body["error"]["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return message if isinstance(message, str) else ""


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the answer broke off"
    if not isinstance(error, OSError):
        return "the answer is not HTTP"  # the error's own words quote it
    return error.strerror or str(error) or type(error).__name__
