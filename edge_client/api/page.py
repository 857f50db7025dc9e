"""Serves the page at the daemon's own address, and a text's live tree for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.tree import SpeculationTree
from edge_client.api.response import event_stream
from edge_client.core.session import EdgeSession
from edge_client.formats.api_error import ApiError
from edge_client.formats.detokenizer import Words, spelled
from edge_client.formats.dialect import DONE, KEEP_ALIVE
from edge_client.formats.json_text import json_text
from edge_client.network.generation import Generation
from edge_client.texts.text_service import Live, TextService

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/favicon.ico": ("favicon.svg", "image/svg+xml"),  # browsers request this name; the type is the file's
}
"""Files and media types by path; the paths are in the gate's `OPEN_PATHS`."""

HEADERS: Mapping[str, str] = {
    # No foreign sources, no inline script or style, no frame: a model's text that looks like markup stays
    # text.
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
"""Headers of every response with a part of the page."""


def page_routes() -> tuple[Route, ...]:
    """Return the page's routes, for `Api(more=...)`. Its files are read here, once."""
    folder = files("edge_client.api") / "page"
    return tuple(_route(path, (folder / name).read_bytes(), kind) for path, (name, kind) in FILES.items())


def _route(path: str, content: bytes, kind: str) -> Route:
    async def serve(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "content-type": kind})

    return Route(path, serve, methods=["GET"])


# The tree ---------------------------------------------------------------------------------------------------

PACE = 0.05
"""Seconds between two snapshots. With 20 a second and its transitions the page moves smoothly."""

FIGURES_EVERY = 5
"""Snapshots between two sets of figures. Faster changes would be unreadable."""

QUIET = 200
"""Snapshots without news before a comment is sent. Proxies drop silent connections."""


def tree_routes(*services: TextService) -> tuple[Route, ...]:
    """Return `GET /v1/sessions/{id}/tree`, for `Api(more=...)`."""

    async def tree(request: Request) -> Response:
        name = request.path_params["id"]
        for texts in services:
            if (live := texts.live.get(name)) is not None:
                return event_stream(_events(texts, name, live))
        raise ApiError(404, f"no text {name!r} is under way", code="session_not_found")

    return (Route("/v1/sessions/{id}/tree", tree, methods=["GET"]),)


MAX_NODES_SHOWN = 400
"""Limit on nodes, above what a screen can show. Nodes nearest to the tip come first."""


class TreeWatch:
    """Collects the changes of one text between two snapshots.

    Many commits may lie between two snapshots. So each snapshot also lists the tokens committed since the one
    before, with their nodes in it.
    """

    def __init__(self, live: Live, words: Words) -> None:
        self._live, self._words = live, words
        self._session: EdgeSession | None = None  # whose tree was shown last
        self._signature: tuple[int, ...] = ()
        self._shown: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self._tip = 0
        self._length = 0  # committed tokens, prompt included
        self._figures: dict[str, Any] = {}

    def tree(self) -> dict[str, Any] | None:
        """Return a snapshot if it differs from the last, else None; None also without a tree."""
        run = self._live.answer.run
        if not isinstance(run, Generation):
            return None
        session, now = run.session, _signature(run.session.tree)
        begins = session is not self._session
        if not begins and now == self._signature:
            return None
        committed = [] if begins else self._committed(session.tree)
        self._session, self._signature = session, now
        nodes = session.tree.speculative()
        self._shown = {(node.parent, node.token): node.id for node in nodes if node.parent is not None}
        self._tip, self._length = session.tree.tip.id, len(session.tree.committed)
        return {**_view(session, self._words), "begins": begins, "committed": committed}

    def figures(self) -> dict[str, Any] | None:
        """Return the text's figures if they have changed."""
        figures = self._live.answer.figures.as_json()
        if figures == self._figures:
            return None
        self._figures = figures
        return figures

    def _committed(self, tree: SpeculationTree) -> list[tuple[int, str]]:
        """Return the commits since the last snapshot: [its node or 0, text]."""
        commits, parent = list[tuple[int, str]](), self._tip
        for token in tree.committed[self._length :]:
            parent = self._shown.get((parent, token), 0)
            commits.append((parent, spelled(self._words, [token])))
        return commits


async def _events(texts: TextService, name: str, live: Live) -> AsyncIterator[bytes]:
    """Yield changes until the text has ended, then its last figures."""
    watch, looks, quiet = TreeWatch(live, texts.words), 0, 0
    while texts.live.get(name) is live:
        told = {"tree": watch.tree(), "figures": watch.figures() if looks % FIGURES_EVERY == 0 else None}
        news = {key: value for key, value in told.items() if value is not None}
        looks, quiet = looks + 1, 0 if news else quiet + 1
        if news:
            yield _frame(news)
        elif quiet % QUIET == 0:
            yield KEEP_ALIVE
        await asyncio.sleep(PACE)
    if figures := watch.figures():
        yield _frame({"figures": figures})
    yield DONE


def _frame(news: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json_text(news).encode()


def _view(session: EdgeSession, words: Words) -> dict[str, Any]:
    """Return nodes below the tip, parents first: `[id, parent, text, log-probability, sent]`."""
    tree = session.tree
    nodes = list(islice(tree.speculative(), MAX_NODES_SHOWN))
    return {
        "position": tree.tip_position - len(session.config.prompt) + 1,
        "tip": [tree.tip.id, spelled(words, [tree.tip.token])],
        "nodes": [
            [each.id, each.parent, spelled(words, [each.token]), round(each.logprob, 2), each.wire_id > 0]
            for each in nodes
        ],
        "credit": session.view.credit,
        "sent": session.view.num_sent,
        "rtt_ms": round(session.view.rtt.latest_rtt * 1e3, 1),
    }


def _signature(tree: SpeculationTree) -> tuple[int, ...]:
    sent = sum(node.wire_id > 0 for node in tree.speculative())
    return (tree.tip.id, tree.num_speculative, sent, max(tree.live, default=0))
