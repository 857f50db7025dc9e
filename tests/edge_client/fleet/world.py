"""A broker, keys, devices and operators for one test. Needs what the mark `broker` stands for."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import aiomqtt
import trustme

from edge_client.fleet.document import Document, Sign, desired_topic, read_report, seal, topic
from edge_client.fleet.fleet_task import Fleet
from edge_client.fleet.keys import generate, public_path, read_private, signer
from edge_client.fleet.mqtt import connected, subscribe
from edge_client.settings import FleetSection
from tests.edge_client.fleet.broker import DEVICE, PATIENCE, TENANT, Broker, Daemon
from tests.support.waiting import until

STATUS = topic(TENANT, DEVICE, "status")


class Operator:
    """A client that keeps what it hears, in order, and publishes documents."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self.client, self.heard = client, list[tuple[str, bytes]]()

    async def listen(self) -> None:
        async for message in self.client.messages:
            self.heard.append((message.topic.value, message.payload))

    async def publish(self, payload: bytes, place: str = desired_topic(TENANT)) -> None:
        await self.client.publish(place, payload, qos=1, retain=True)

    @property
    def presences(self) -> list[dict[str, Any]]:
        found = [read_report(payload) for place, payload in self.heard if place == STATUS]
        return [{**labels, **figures} for labels, figures in found]

    async def until(self, count: int) -> None:
        """Wait for so many messages."""
        await until(lambda: len(self.heard) >= count)


class World:
    """Everything lies below `folder`."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.broker = folder, broker
        generate(folder / "key")
        self.sign = signer(read_private(folder / "key"))
        self.settings = FleetSection(
            broker=f"mqtt://127.0.0.1:{broker.port}",
            tenant=TENANT,
            device=DEVICE,
            public_key=str(public_path(folder / "key")),
            telemetry_interval=3600.0,
        )
        self._versions = itertools.count(1)

    def document(self, sign: Sign | None = None, **fields: Any) -> bytes:
        """Return a signed document, newer than the last one."""
        at = time.time() + 3600
        found: dict[str, Any] = {"tenant": TENANT, "version": next(self._versions), "expires_at": at} | fields
        return seal(Document(**found), sign or self.sign)

    @contextlib.asynccontextmanager
    async def device(
        self, daemon: Daemon | None = None, state: str = "state", **changes: Any
    ) -> AsyncIterator[Fleet]:
        """Run a fleet's device, connected or not."""
        fleet = Fleet(replace(self.settings, **changes), self.folder / state, cast(Any, daemon or Daemon()))
        async with running(fleet):
            yield fleet

    @contextlib.asynccontextmanager
    async def operator(self, *topics: str) -> AsyncIterator[Operator]:
        """Connect an operator that listens to these topics, or to the status of the device."""
        async with connected(self.settings, "operator") as client:
            for place in topics or (STATUS,):
                await subscribe(client, place)
            operator = Operator(client)
            listening = asyncio.create_task(operator.listen())
            try:
                yield operator
            finally:
                listening.cancel()


@contextlib.asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    """Run the device's task inside the block."""
    task = asyncio.create_task(fleet.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled() or task.exception() is not None  # not pending


def certificates(folder: Path, *names: str) -> None:
    """Write ca.pem, the server's pair and one pair for each name, whose common name it is."""
    folder.mkdir()
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", *names):
        issued = ca.issue_cert("127.0.0.1" if name == "server" else f"{name}.example", common_name=name)
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        for number, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(str(folder / f"{name}.pem"), append=number > 0)
