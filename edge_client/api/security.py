"""Checks the token, the Host and the Origin of every request before any route.

A page in a browser can send requests to this machine's ports, and DNS rebinding can make them appear to go to
the page's own site. So the Host must be a name of this daemon. An Origin, which browsers send and other
programs do not, must be the daemon's own page or an allowed one.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.formats.api_error import ApiError, log_refusal

HEALTH_PATHS = ("/health", "/v1/health", "/ping")
"""Paths at which clients of llama-server, vLLM and SGLang wait for the server."""

OPEN_PATHS = frozenset(("/", "/healthz", "/readyz", "/page.js", "/page.css", "/favicon.ico", *HEALTH_PATHS))
"""Paths that supervisors and browsers request without a token. They reveal nothing about texts."""

REQUEST_ID = ("x-request-id", "request-id")
"""Headers from which OpenAI's and Anthropic's clients take a request's id."""

REQUEST = "forerun.request"
"""Key of the request's id in its ASGI scope."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks requests. Over a unix socket (`is_socket`) the file's permissions replace the check."""

    token: str = ""  # empty: none is required
    hosts: tuple[str, ...] = ()  # names beside this machine's own
    origins: tuple[str, ...] = ()  # allowed in a browser, beside the daemon's own page
    is_socket: bool = False

    def refusal(self, path: str, headers: Mapping[str, str]) -> ApiError | None:
        """Return why a request may not pass; None if it may. Header names are lower-case."""
        if not self.is_socket and not self._knows_host(headers.get("host", "")):
            known = f"this daemon is not known as {headers.get('host', '')!r}; add it to api.allowed_hosts"
            return ApiError(421, known, kind="permission_error", code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._knows_origin(origin, headers.get("host", "")):
            words = f"pages of {origin!r} may not use this daemon; add the origin to api.allowed_origins"
            return ApiError(403, words, kind="permission_error", code="origin_not_allowed")
        if not self.token or self.is_socket or path in OPEN_PATHS:
            return None
        return self._token_refusal(headers)

    def _token_refusal(self, headers: Mapping[str, str]) -> ApiError | None:
        """Look for the token as OpenAI's clients send it, and as Anthropic's do (`x-api-key`)."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = (bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))
        if any(hmac.compare_digest(each.strip().encode(), self.token.encode()) for each in given):
            return None
        said = "the token is not this daemon's; `forerun edge status` names the file that holds it"
        if "authorization" not in headers and "x-api-key" not in headers:
            said = "the token is missing; send `Authorization: Bearer TOKEN` (see `forerun edge status`)"
        return ApiError(401, said, kind="authentication_error", code="invalid_api_key")

    def _knows_host(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name.lower() in LOCAL_HOSTS or name.lower() in self.hosts

    def _knows_origin(self, origin: str, host: str) -> bool:
        own = (f"http://{host}", f"https://{host}")
        return origin.lower() in own or origin in self.origins


class Guarded:
    """Wraps an ASGI application in a `Gate`, limits the size of bodies, and gives each request an id.

    `error_body` returns the body of an error for a path.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        max_body_bytes: int,
        error_body: Callable[[str, ApiError], dict[str, Any]],
    ) -> None:
        self._app, self._gate, self._max_body_bytes = app, gate, max_body_bytes
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST] = f"req_{secrets.token_hex(12)}"
        send, headers = _with_id(send, scope[REQUEST]), Headers(scope=scope)
        refusal = self._gate.refusal(scope["path"], headers) or self._too_large(headers)
        if refusal is not None:
            log_refusal(scope["method"], scope["path"], refusal, scope[REQUEST])
            body = self._error_body(scope["path"], refusal)
            answer = JSONResponse(body, refusal.status, refusal.headers)
            await answer(scope, receive, send)
        else:
            await self._app(scope, self._counting(receive), send)

    def _too_large(self, headers: Headers) -> ApiError | None:
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 18 or int(size) > self._max_body_bytes:
            return self._too_many_bytes
        return None

    @property
    def _too_many_bytes(self) -> ApiError:
        words = f"the body has more than the {self._max_body_bytes} bytes that are allowed"
        return ApiError(413, words, code="body_too_large")

    def _counting(self, receive: Receive) -> Receive:
        """Limit a body that arrives in pieces without an announced size."""
        left = self._max_body_bytes

        async def receiving() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_many_bytes
            return message

        return receiving


def _with_id(send: Send, request: str) -> Send:
    """Add the request's id to the head of its response."""
    own = [(name.encode(), request.encode()) for name in REQUEST_ID]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *own]
        await send(message)

    return sending
