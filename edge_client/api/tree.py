"""A text's speculation tree and figures, live: server-sent events for people who watch it grow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from common.tree import SpeculationTree
from edge_client.api.errors import ApiError
from edge_client.api.telling import DONE, KEEP_ALIVE
from edge_client.core.session import EdgeSession
from edge_client.daemon.device import Device, Live
from edge_client.daemon.tree_view import signature, tree_view
from edge_client.generation import Generation
from edge_client.text import Words

PACE = 0.05
"""Seconds between two looks: 20 pictures a second move smoothly where the page eases between them."""

FIGURES_EVERY = 5
"""Looks from one set of figures to the next: numbers that change faster cannot be read."""

QUIET = 200
"""Looks without news after which a comment is sent: proxies give up on silent connections."""


def tree_routes(device: Device) -> tuple[Route, ...]:
    """`GET /v1/sessions/{id}/tree`, for `Api(more=...)`."""

    async def tree(request: Request) -> Response:
        live = device.live.get(name := request.path_params["id"])
        if live is None:
            error = ApiError(404, f"no text {name!r} is under way", code="session_not_found")
            return JSONResponse(error.body, status_code=error.status)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        events = _events(device, name, live)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    return (Route("/v1/sessions/{id}/tree", tree, methods=["GET"]),)


class TreeWatch:
    """What is new of one text whenever somebody looks.

    Two looks may be many commits apart, so each snapshot also tells what was committed since the one before,
    and which of the nodes shown there it was.
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
        """A snapshot if it is another one than the last; None also where no session has a tree."""
        run = self._live.answer.run
        if not isinstance(run, Generation):
            return None
        session, now = run.session, signature(run.session.tree)
        begins = session is not self._session
        if not begins and now == self._signature:
            return None
        committed = [] if begins else self._committed(session.tree)
        self._session, self._signature = session, now
        self._remember(session.tree)
        ours = {
            "begins": begins,
            "committed": committed,
            "acceptance": round(session.view.acceptance.ratio, 3),
        }
        return {**tree_view(session, self._words), **ours}

    def figures(self) -> dict[str, Any] | None:
        """The text's figures if they are others than the last."""
        figures = self._live.answer.figures.as_json()
        if figures == self._figures:
            return None
        self._figures = figures
        return figures

    def _committed(self, tree: SpeculationTree) -> list[tuple[int, str]]:
        """Since the last snapshot: [node shown there, or 0, and its text]."""
        found, parent = list[tuple[int, str]](), self._tip
        for token in tree.committed[self._length :]:
            parent = self._shown.get((parent, token), 0)
            found.append((parent, self._words.piece(token).decode("utf-8", "replace")))
        return found

    def _remember(self, tree: SpeculationTree) -> None:
        nodes = tree.speculative()
        self._shown = {(node.parent, node.token): node.id for node in nodes if node.parent is not None}
        self._tip, self._length = tree.tip.id, len(tree.committed)


async def _events(device: Device, name: str, live: Live) -> AsyncIterator[bytes]:
    """Until the text has ended, and its last figures."""
    watch, looks, quiet = TreeWatch(live, device.words), 0, 0
    while device.live.get(name) is live:
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
    return b"data: %s\n\n" % json.dumps(news, ensure_ascii=False).encode()
