"""The page at the daemon's own address: plain files, shown to whoever asks, who then needs the token."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/favicon.ico": ("favicon.svg", "image/svg+xml"),  # browsers ask by this name; the type says what it is
}
"""By path, as `OPEN_PATHS` of the gate has them: the file, and what it is."""

HEADERS: Mapping[str, str] = {
    # Nothing from elsewhere, no script or style within the page, no frame around it: text of a model that
    # looks like markup stays text.
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",  # an updated daemon serves another page, at once
}
"""Of every response with a part of the page."""


def page_routes() -> tuple[Route, ...]:
    """The page's, for `Api(more=...)`. Its files are read here, once."""
    folder = files("edge_client.api") / "page"
    return tuple(_route(path, (folder / name).read_bytes(), kind) for path, (name, kind) in FILES.items())


def _route(path: str, content: bytes, kind: str) -> Route:
    async def serve(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "content-type": kind})

    return Route(path, serve, methods=["GET"])
