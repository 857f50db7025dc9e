"""The tiny world's API on a real port, and with its page for browsers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from edge_client.api.endpoints import TextEndpoints
from edge_client.api.response import ResponseSpec
from edge_client.api.security import Gate
from edge_client.formats.dialect import Dialect
from edge_client.texts.text_service import TextService, TextSettings
from simulator.proxy.fault_link import Link
from tests.edge_client.api.world import LETTERED, Letters, Seats, World, world
from tests.support.tiny import SlowTarget

TOKEN = "a-token-of-the-tests"


@dataclass
class Served:
    """Where it is."""

    world: World
    address: str  # HOST:PORT

    @property
    def url(self) -> str:
        """As SDKs want it."""
        return f"http://{self.address}/v1"


@contextlib.asynccontextmanager
async def served(listen: str = "127.0.0.1:0", step_time: float = 0.0, **more: Any) -> AsyncIterator[Served]:
    """Serve until the block ends."""
    from edge_client.api.listening import Listening

    gate = Gate(token=TOKEN, is_socket=listen.startswith("unix:"))
    async with world(gate, step_time=step_time, **more) as it, Listening(it.api.app, listen) as listening:
        yield Served(it, listening.address)


class Endless(TextEndpoints):
    """The tiny target ends its texts after a few letters; here they go on to their greatest length."""

    async def read(self, dialect: type[Dialect], body: dict[str, Any]) -> ResponseSpec:
        return await super().read(dialect, {**body, "ignore_eos": True})


@dataclass
class PageWorld:
    """Where the page is, and what stands behind it."""

    url: str
    texts: TextService
    state: Callable[[], Any]  # of the link
    engine: SlowTarget  # whose `step_time` may change while it runs

    @property
    def with_token(self) -> str:
        """The address as a user gets it."""
        return f"{self.url}/#token={TOKEN}"


@contextlib.asynccontextmanager
async def page_world(step_time: float = 0.01, words: Letters = LETTERED) -> AsyncIterator[PageWorld]:
    """Serve the page until the block ends, over a link that the page can cut."""
    from edge_client.api.page import page_routes, tree_routes
    from lab.demo.page import DemoLink

    async with contextlib.AsyncExitStack() as stack:
        sliders = list[DemoLink]()

        async def through(address: str) -> str:
            sliders.append(DemoLink(await stack.enter_async_context(Link.to(address))))
            return str(sliders[0].link.address)

        it = await stack.enter_async_context(
            served(
                step_time=step_time,
                seats=Seats(blend=0.5),
                words=words,
                settings=TextSettings(patience=0.3),
                through=through,
                endpoints=Endless,
                status=STATUS,
                more=lambda texts: (*page_routes(), *tree_routes(texts), *sliders[0].routes),
            )
        )
        engine = it.world.system.worker._engine  # `running` made it, and tells of the worker only
        assert isinstance(engine, SlowTarget)
        yield PageWorld(f"http://{it.address}", it.world.texts, lambda: sliders[0].state, engine)


STATUS = {
    "demo_link": True,
    "mode": "ahead",
    "version": "1.2.3",
    "draft": {"state": "loaded", "error": ""},
    "verifiers": [
        {"address": "127.0.0.1:1", "health": "unreachable", "rtt_ms": None, "why": "nobody listens"}
    ],
    "pairs": {},
}
