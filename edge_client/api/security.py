"""Who may ask: a token, the right Host, no foreign Origin. Before any route, over plain ASGI.

A page in a browser can send requests to this machine's ports, and by DNS rebinding make them look as if they
came from their own site. So the Host must be one that this daemon is known by, and an Origin, which browsers
send and other programs do not, must be the daemon's own page or one that its owner has allowed.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.api.errors import ApiError

OPEN_PATHS = frozenset(("/", "/healthz", "/readyz", "/page.js", "/page.css", "/favicon.ico"))
"""Asked by supervisors and browsers without a token; they tell nothing about texts."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Gate:
    """What a request must have. Over a unix socket `is_socket` the file's own rights say who may connect."""

    token: str = ""  # empty: none is asked for
    hosts: tuple[str, ...] = ()  # names beside this machine's own
    origins: tuple[str, ...] = ()  # that may ask from a browser, beside the daemon's own page
    is_socket: bool = False

    def refusal(self, path: str, method: str, headers: dict[str, str]) -> ApiError | None:
        """Why a request may not pass; None if it may. Header names are lower-case."""
        if not self.is_socket and not self._knows_host(headers.get("host", "")):
            return ApiError(
                421,
                f"this daemon is not known as {headers.get('host', '')!r}; add the name to api.allowed_hosts",
                kind="permission_error",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and not self._knows_origin(origin, headers.get("host", "")):
            return ApiError(
                403,
                f"pages of {origin!r} may not use this daemon; add the origin to api.allowed_origins",
                kind="permission_error",
                code="origin_not_allowed",
            )
        is_question = method == "OPTIONS" and origin is not None  # a preflight carries no token
        if not self.token or self.is_socket or path in OPEN_PATHS or is_question:
            return None
        return self._token_refusal(headers.get("authorization", ""))

    def allows(self, origin: str) -> bool:
        """Whether responses tell a browser that this origin's pages may read them."""
        return origin in self.origins

    def _token_refusal(self, authorization: str) -> ApiError | None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return None
        said = (
            "the token is missing; send `Authorization: Bearer TOKEN` (`forerun edge status` names its file)"
        )
        if authorization:
            said = "the token is not this daemon's; `forerun edge status` names the file that holds it"
        return ApiError(
            401,
            said,
            kind="authentication_error",
            code="invalid_api_key",
        )

    def _knows_host(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name.lower() in LOCAL_HOSTS or name.lower() in self.hosts

    def _knows_origin(self, origin: str, host: str) -> bool:
        own = (f"http://{host}", f"https://{host}")
        return origin.lower() in own or origin in self.origins


class Guarded:
    """An ASGI application behind a `Gate`, with a bound on the size of bodies."""

    def __init__(self, app: ASGIApp, gate: Gate, max_body_bytes: int) -> None:
        self._app, self._gate, self._max_body_bytes = app, gate, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _plain(scope["headers"])
        refusal = self._gate.refusal(scope["path"], scope["method"], headers) or self._too_large(headers)
        if refusal is not None:
            await _refuse(send, refusal)
            return
        origin, receive = headers.get("origin", ""), self._counting(receive)
        if not self._gate.allows(origin):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await _answer(send, 204, _cors(origin), b"")
        else:
            await self._app(scope, receive, _with_headers(send, _cors(origin)))

    def _too_large(self, headers: dict[str, str]) -> ApiError | None:
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 18 or int(size) > self._max_body_bytes:
            return self._too_many_bytes
        return None

    @property
    def _too_many_bytes(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than the {self._max_body_bytes} bytes that are read",
            code="body_too_large",
        )

    def _counting(self, receive: Receive) -> Receive:
        """Bodies that come in pieces tell no size beforehand."""
        left = self._max_body_bytes

        async def receiving() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_many_bytes
            return message

        return receiving


def _plain(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type, last-event-id, x-conversation-id"),
        (b"vary", b"origin"),
    ]


def _with_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


async def _refuse(send: Send, error: ApiError) -> None:
    more = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    body = json.dumps(error.body).encode()
    await _answer(send, error.status, [(b"content-type", b"application/json"), *more], body)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    head = [(b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
