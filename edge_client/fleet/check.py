"""What `forerun doctor` asks of a broker: can this device do what it must, and no more?

A granted subscription proves nothing, and a denied publish says so only by a reason code. So the device
writes to a topic of its own and reads it back, and tries what a broker with good rules denies.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass

from common.errors import ForerunError, UserError
from edge_client.core.fleet.names import DeviceTopics
from edge_client.fleet.mqtt import Connection, OnMessage
from edge_client.fleet.settings import FleetSettings
from edge_client.fleet.words import BrokerError, DeniedError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. `ok` None: it works, and should be better."""

    ok: bool | None
    words: str


async def check_broker(settings: FleetSettings) -> list[Finding]:
    """Connects beside a running daemon, under a client id of its own. What is wrong there is a finding."""
    heard = asyncio.Queue[tuple[str, bytes]](maxsize=64)
    try:
        context = await asyncio.to_thread(settings.broker.context)
        name = f"{settings.device}-doctor-{secrets.token_hex(3)}"
        async with Connection(settings.broker, name, _keep(heard), context) as connection:
            findings = [Finding(True, f"the broker {settings.broker} lets {settings.device} in")]
            return findings + await _try(settings, connection, heard)
    except (BrokerError, UserError) as error:
        return [Finding(False, str(error))]


async def _try(
    settings: FleetSettings, connection: Connection, heard: asyncio.Queue[tuple[str, bytes]]
) -> list[Finding]:
    topics = settings.topics
    other = DeviceTopics(settings.tenant, f"doctor-{secrets.token_hex(4)}")
    return [
        _protected(settings),
        await _read_back(settings, connection, heard),
        await _must_be_denied(
            connection.publish(other.status, b""),
            "another device's status",
            "it could pretend to be any device",
        ),
        await _must_be_denied(
            connection.publish(topics.desired, b""),
            "its own config/desired",
            "that is the operator's; orders are signed all the same",
        ),
        await _must_be_denied(
            connection.publish(topics.shared.kill, b""),
            "the fleet's kill switch",
            "that is the operator's; orders are signed all the same",
        ),
        _believes(settings),
    ]


def _protected(settings: FleetSettings) -> Finding:
    broker = settings.broker
    if not broker.tls:
        return Finding(None, "there is no TLS: whoever is on the way reads what this device tells its fleet")
    if broker.certificate is None:
        return Finding(None, "this device has no client certificate; a password is all that names it")
    return Finding(True, "TLS holds, with a client certificate")


async def _read_back(
    settings: FleetSettings, connection: Connection, heard: asyncio.Queue[tuple[str, bytes]]
) -> Finding:
    topic, word = f"{settings.topics.base}/probe", secrets.token_hex(8).encode()
    try:
        granted = await connection.subscribe(topic)
        await connection.publish(topic, word, expiry=60)
        async with asyncio.timeout(settings.broker.timeout):
            while granted and await heard.get() != (topic, word):
                pass
    except DeniedError as error:
        return Finding(False, str(error))
    except TimeoutError:
        granted = False
    if granted:
        return Finding(True, f"what it publishes to {topic} comes back")
    return Finding(
        False,
        f"what it publishes to {topic} does not come back: the broker takes it and delivers nothing; orders "
        "would not arrive either; check its access rules (docs/fleet.md)",
    )


async def _must_be_denied(attempt: Awaitable[None], what: str, why: str) -> Finding:
    try:
        await attempt
    except DeniedError:
        return Finding(True, f"it may not write to {what}")
    except ForerunError as error:
        return Finding(False, str(error))
    return Finding(None, f"the broker lets this device write to {what}: {why}; tighten its access rules")


def _believes(settings: FleetSettings) -> Finding:
    if not settings.keys:
        return Finding(None, "no fleet key is configured, so every order is refused; only telemetry leaves")
    return Finding(True, f"orders are believed by {len(settings.keys)} fleet key(s)")


def _keep(heard: asyncio.Queue[tuple[str, bytes]]) -> OnMessage:
    """Puts what comes in the queue, and leaves out what finds no room there."""

    def put(topic: str, payload: bytes) -> None:
        if not heard.full():
            heard.put_nowait((topic, payload))

    return put
