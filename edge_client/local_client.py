"""A client of the daemon's HTTP API, for the commands beside it: over TCP or a unix socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.address import host_and_port
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from edge_client import daemon_file
from edge_client.daemon_file import DaemonRecord
from edge_client.token_file import read_token

UNIX = "unix:"
ANSWER_TIMEOUT = 10.0
"""Seconds until an answer must be there; the daemon answers from memory."""

EVENT_TIMEOUT = 60.0
"""Seconds between two lines of a stream; the daemon sends a comment at least every ten."""

LARGEST_ANSWER = 64 << 20
LONGEST_LINE = 16 << 20
READ_SIZE = 1 << 16  # bytes at once, at most
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Where a daemon that listens on all addresses is reached from its own machine."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One of a stream (server-sent events, WHATWG HTML 9.2)."""

    data: str
    event: str = "message"
    id: str = ""

    def json(self) -> Any:
        """The data as JSON. Raises `PeerError` if it is none."""
        return _decoded(self.data)


def connect(path: Path) -> LocalClient:
    """A client of the daemon that the file `path` tells of. Raises `UnavailableError` if none runs."""
    record = daemon_file.read(path)
    if record is None:
        raise UnavailableError("no edge daemon is running; start one with: forerun edge")
    return client_of(record)


def client_of(record: DaemonRecord) -> LocalClient:
    """A client of this daemon, with its token. Raises `UserError` if that cannot be read."""
    token = read_token(Path(record.token_file)) if record.token_file else ""
    return LocalClient(record.listen, token, tls_cert=record.tls_cert)


class LocalClient:
    """Asks one daemon; a connection a request. Every failure is a `ForerunError` in a sentence."""

    def __init__(
        self, address: str, token: str = "", *, tls_cert: str = "", timeout: float = ANSWER_TIMEOUT
    ) -> None:
        """`address`: HOST:PORT or unix:PATH. `tls_cert`: the daemon's own certificate, if it speaks TLS."""
        self.address = address
        self._token = token
        self._timeout = timeout
        self._tls = _pinned(tls_cert) if tls_cert else None

    def get(self, path: str, *, timeout: float | None = None) -> Any:
        """The JSON at `path`; a text if it is of another type."""
        return self._ask("GET", path, None, timeout)

    def post(self, path: str, body: object = None, *, timeout: float | None = None) -> Any:
        """The JSON that answers this body."""
        return self._ask("POST", path, body, timeout)

    def delete(self, path: str, *, timeout: float | None = None) -> Any:
        """The JSON that answers."""
        return self._ask("DELETE", path, None, timeout)

    def events(
        self,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = EVENT_TIMEOUT,
    ) -> Iterator[ServerEvent]:
        """A stream's events as they come: of a POST with this body, of a GET without. Closing the iterator
        hangs up.

        Args: headers, more of them (`Last-Event-ID`); timeout, seconds without a line. Raises as `get`, and
        `UnavailableError` if the stream breaks.
        """
        method = "GET" if body is None else "POST"
        wanted = {"Accept": "text/event-stream", **(headers or {})}
        with self._answer(method, path, body, wanted, timeout) as answer:
            kind = answer.headers.get_content_type()
            if kind != "text/event-stream":
                raise PeerError(f"{self.address}{path} answered {kind}, not a stream of events")
            yield from _events(answer)

    def _ask(self, method: str, path: str, body: object, timeout: float | None) -> Any:
        with self._answer(method, path, body, {"Accept": "application/json"}, timeout) as answer:
            text = _text(answer)
            return _decoded(text) if answer.headers.get_content_type() == "application/json" else text

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: object, headers: dict[str, str], timeout: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer's head, if it is a good one. Whatever breaks inside is told as this daemon's failure."""
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(self._timeout if timeout is None else timeout)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _refusal(answer, _text(answer))
            yield answer
        except TimeoutError as error:
            raise UnavailableError(
                f"the daemon at {self.address} did not answer in time; its log may tell why",
                Code.DEADLINE_EXCEEDED,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"the daemon at {self.address} cannot be reached: {_words(error)}"
            ) from error
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.address.startswith(UNIX):
            return _UnixConnection(self.address.removeprefix(UNIX), timeout)
        found = host_and_port(self.address)
        if found is None:
            raise UserError(f"{self.address!r} is no address of a daemon; it must be HOST:PORT or unix:PATH")
        host, port = found[0].strip("[]"), found[1]
        host = ANYWHERE.get(host, host)
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)  # the name that stands in `Host`
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _pinned(certificate: str) -> ssl.SSLContext:
    """Trusts what is in this file and nothing else, whatever name or authority it has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(certificate)
    except OSError as error:
        raise UserError(f"the daemon's certificate {certificate} cannot be read: {error}") from error
    return context


def _events(answer: http.client.HTTPResponse) -> Iterator[ServerEvent]:
    """An event ends with an empty line; what stands after the last one is not whole and is dropped."""
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
    """By `read1`: the response's own `readline` takes a broken chunk for the end."""
    begun = b""
    while data := answer.read1(READ_SIZE):
        *whole, begun = (begun + data).split(b"\n")
        yield from whole
        if len(begun) > LONGEST_LINE:
            raise PeerError(f"a line of the stream has more than {LONGEST_LINE} bytes")


def _text(answer: http.client.HTTPResponse) -> str:
    data = answer.read(LARGEST_ANSWER + 1)
    if len(data) > LARGEST_ANSWER:
        raise PeerError(f"the answer has more than {LARGEST_ANSWER} bytes; is this a Forerun daemon?")
    if answer.length:  # what is missing of the length that was told
        raise http.client.IncompleteRead(data, answer.length)
    return data.decode("utf-8", "replace")


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PeerError(f"the answer is not JSON: {text[:80]!r}") from error


def _refusal(answer: http.client.HTTPResponse, text: str) -> ForerunError:
    """The error that a status and its body stand for."""
    words = _told(text) or f"{answer.status} {answer.reason}"
    if answer.status in (401, 403):
        return UserError(f"the daemon does not let this command in: {words}", Code.FAILED_PRECONDITION)
    if answer.status == 404:
        return UserError(words, Code.NOT_FOUND)
    if answer.status == 429:
        return CapacityError(words, retry_after=_seconds(answer.getheader("Retry-After")))
    if answer.status in (502, 503, 504):
        return UnavailableError(words)
    return UserError(words) if answer.status < 500 else LocalError(words)


def _told(text: str) -> str:
    """The message of {"error": {"message": ...}}, as OpenAI's API has it; empty if there is none."""
    try:
        found = json.loads(text)
        message = found["error"]["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return message if isinstance(message, str) else ""


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the answer broke off"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
