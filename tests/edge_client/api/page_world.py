"""A daemon with its page on a real port, over the tiny target and a link that the page can cut."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from edge_client.api.app import Api, ApiSettings
from edge_client.api.asking import Asked
from edge_client.api.demo_link import LinkState, demo_routes
from edge_client.api.listening import Listening
from edge_client.api.page import page_routes
from edge_client.api.security import Gate
from edge_client.api.service import Defaults, TextService
from edge_client.api.telling import Telling
from edge_client.api.tree import tree_routes
from edge_client.channel import VerifierChannel
from edge_client.daemon.device import Device, DeviceSettings
from forerun.demo_page import Knob
from link.proxy import Link
from tests.drivers.tiny import VOCABULARY, SlowTarget, running
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import TEMPLATE, Letters, OneVerifier, Seats


class Endless(TextService):
    """The tiny target ends its texts after a few letters; here they go on to their greatest length."""

    async def chat(self, body: dict[str, Any]) -> tuple[Telling, Asked]:
        return await super().chat({**body, "ignore_eos": True})

    async def completion(self, body: dict[str, Any]) -> tuple[Telling, Asked]:
        return await super().completion({**body, "ignore_eos": True})


@dataclass
class PageWorld:
    """Where the page is, and what stands behind it."""

    url: str
    device: Device
    link: Link
    state: Callable[[], LinkState]
    engine: SlowTarget  # whose `step_time` may change while it runs

    @property
    def with_token(self) -> str:
        """The address as a user gets it."""
        return f"{self.url}/#token={TOKEN}"


@contextlib.asynccontextmanager
async def page_world(step_time: float = 0.01) -> AsyncIterator[PageWorld]:
    """Serve until the block ends."""
    async with (
        running(step_time=step_time) as system,
        Link.to(system.address) as link,
        VerifierChannel(str(link.address)) as channel,
    ):
        described = replace(await channel.describe(), chat_template=TEMPLATE)
        device = Device(
            Letters(),
            VOCABULARY,
            OneVerifier(channel, described),
            Seats(blend=0.5),
            DeviceSettings(patience=0.3),
        )
        knob = Knob(link)
        api = Api(
            Endless(device, Defaults(draft_name="tiny-draft")),
            ApiSettings(Gate(token=TOKEN)),
            status=lambda: STATUS,
            ready=lambda: "",
            more=(*page_routes(), *tree_routes(device), *demo_routes(lambda: knob.state, knob.change)),
        )
        async with Listening(api.app, "127.0.0.1:0") as listening:
            engine = system.worker._engine  # `running` made it, and tells of the worker only
            assert isinstance(engine, SlowTarget)
            yield PageWorld(f"http://{listening.address}", device, link, lambda: knob.state, engine)
        await api.streams.close()
    assert device.live == {}


STATUS = {
    "demo_link": True,
    "mode": "ahead",
    "version": "1.2.3",
    "draft": {"name": "tiny-draft", "state": "loaded"},
    "verifiers": [{"address": "127.0.0.1:1", "state": "down", "why": "nobody listens"}],
}
