"""A broker, keys, devices and operators for one test. Needs what the mark `broker` stands for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import trustme

from edge_client.core.fleet.discovery import Offer
from edge_client.core.fleet.payloads import (
    CommandName,
    HostTelemetry,
    LinkTelemetry,
    SpecTelemetry,
    Telemetry,
)
from edge_client.core.fleet.presence import About
from edge_client.core.fleet.standing import FleetOrders
from edge_client.fleet.fleet import Fleet
from edge_client.fleet.hooks import Hooks
from edge_client.fleet.keys import generate, public_path, read_private, read_public, signer
from edge_client.fleet.mqtt import Connection
from edge_client.fleet.operator import Signer
from edge_client.fleet.settings import BrokerSettings, FleetSettings
from tests.edge_client.fleet.broker import DEVICE, PATIENCE, TENANT, Broker, Listener, running

ABOUT = About(version="0.1", draft="demo", verifier="gpu-1")


class Daemon:
    """What a daemon does with its fleet, written down."""

    def __init__(self) -> None:
        self.orders = list[FleetOrders]()
        self.acts = list[CommandName]()
        self.offers = list[tuple[Offer, ...]]()
        self.telemetry = Telemetry(SpecTelemetry(tokens=7), LinkTelemetry(), HostTelemetry())
        self.errors = list[str]()  # what `apply` complains of

    def apply(self, values: Mapping[str, Any]) -> list[str]:
        return self.errors

    async def act(self, name: CommandName) -> None:
        self.acts.append(name)

    @property
    def hooks(self) -> Hooks:
        return Hooks(lambda: self.telemetry, self.orders.append, self.apply, self.act, self.offers.append)


class World:
    """Everything lies below `folder`."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.broker = folder, broker
        generate(folder / "key")
        self.public = read_public(str(public_path(folder / "key")))
        self.sign = signer(read_private(folder / "key"))
        self.signer = Signer(TENANT, self.sign, time.time)
        self.address = BrokerSettings("127.0.0.1", broker.port, tls=False, timeout=5.0)
        self.settings = FleetSettings(
            self.address,
            TENANT,
            DEVICE,
            folder / "state",
            keys=(self.public,),
            telemetry_interval=0,
            first_backoff=0.01,
            max_backoff=0.05,
        )
        self.topics = self.settings.topics

    @contextlib.asynccontextmanager
    async def device(self, daemon: Daemon | None = None, **changes: Any) -> AsyncIterator[Fleet]:
        """A fleet's device, running; connected or not."""
        fleet = Fleet(replace(self.settings, **changes), ABOUT, (daemon or Daemon()).hooks)
        async with running(asyncio.create_task(fleet.run())):
            yield fleet

    @contextlib.asynccontextmanager
    async def ear(self, *topics: str) -> AsyncIterator[tuple[Listener, Connection]]:
        """An operator's ear and mouth."""
        listener = Listener()
        async with Connection(self.address, "ear", listener.on_message, None) as connection:
            for topic in topics or ("forerun/v1/#",):
                assert await connection.subscribe(topic)
            yield listener, connection


async def until(holds: Callable[[], bool]) -> None:
    """Turns the event loop until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  # states are read, they announce nothing
            await asyncio.sleep(0.005)


def certificates(folder: Path, *names: str) -> trustme.CA:
    """Writes ca.pem, the server's pair and one pair for each name, whose common name it is."""
    folder.mkdir()
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", *names):
        issued = ca.issue_cert("127.0.0.1" if name == "server" else f"{name}.example", common_name=name)
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        for number, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(str(folder / f"{name}.pem"), append=number > 0)
    return ca
