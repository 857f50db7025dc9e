"""The demo's link: a page's sliders make the way to the verifier slower, or cut it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge_client.api.errors import ApiError
from edge_client.api.fields import Fields

DEMO_LINK = "/v1/demo/link"

MAX_RTT_MS = 2000.0
"""A geostationary satellite and back twice; the page's own slider ends earlier."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """What is added to the link to the verifier."""

    rtt_ms: float = 0.0  # round trip
    jitter_ms: float = 0.0  # of the round trip
    down: bool = False  # nothing passes


def demo_routes(
    get: Callable[[], LinkState], change: Callable[[LinkState], Awaitable[None]]
) -> tuple[Route, ...]:
    """`GET` and `POST /v1/demo/link`, for `Api(more=...)` of a demo: `get` tells how the link is, `change`
    makes it so. Elsewhere there is no such path, and the page shows no sliders."""

    async def show(request: Request) -> Response:
        return JSONResponse(asdict(get()))

    async def post(request: Request) -> Response:
        try:
            wanted = read_link(await request.body(), get())
        except ApiError as error:
            return JSONResponse(error.body, status_code=error.status)
        await change(wanted)
        return JSONResponse(asdict(get()))

    return Route(DEMO_LINK, show, methods=["GET"]), Route(DEMO_LINK, post, methods=["POST"])


def read_link(body: bytes, now: LinkState) -> LinkState:
    """The link that a request's body asks for; what it does not name stays as `now`. Raises `ApiError`."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are no UTF-8
        raise ApiError(400, f"the body is not JSON: {error}"[:300], code="invalid_json") from error
    if not isinstance(given, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    fields = Fields(given)
    found = LinkState(
        rtt_ms=fields.number("rtt_ms", now.rtt_ms, 0.0, MAX_RTT_MS),
        jitter_ms=fields.number("jitter_ms", now.jitter_ms, 0.0, MAX_RTT_MS),
        down=fields.flag("down", now.down),
    )
    fields.finish()
    return found
