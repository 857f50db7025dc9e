"""The tiny world's API on a real port, for clients that bring their own HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from edge_client.api.security import Gate
from tests.edge_client.api.world import World, world

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
async def served(listen: str = "127.0.0.1:0", step_time: float = 0.0) -> AsyncIterator[Served]:
    """Serve until the block ends."""
    from edge_client.api.listening import Listening

    gate = Gate(token=TOKEN, is_socket=listen.startswith("unix:"))
    async with world(gate, step_time=step_time) as found, Listening(found.api.app, listen) as listening:
        yield Served(found, listening.address)
