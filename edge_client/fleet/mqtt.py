"""Connects to a fleet's MQTT 5 broker by aiomqtt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from common.errors import UnavailableError, UserError
from edge_client.fleet.document import MAX_PAYLOAD
from edge_client.process.paths import path_of
from edge_client.settings import FleetSection

quiet = logging.getLogger(f"{__name__}.library")
quiet.setLevel(logging.CRITICAL)  # aiomqtt logs each lost connection; `BrokerError` reports it once

MAX_PACKET = 2 * MAX_PAYLOAD
"""Bytes of a packet: a payload, its topic and MQTT's own. MQTT allows 256 MB."""

MAX_WAITING = 1024
"""Messages that wait for our reader, beyond which they are dropped."""

KEEPALIVE = 20
"""Seconds; a broker notices a stalled device after one and a half of these."""

TIMEOUT = 10.0
"""Seconds for the broker's answer to a connection, a subscription or a message."""


class BrokerError(UnavailableError):
    """Raised if the connection cannot be made, has ended, or denies a subscription."""


@contextlib.asynccontextmanager
async def connected(
    fleet: FleetSection, name: str, will: aiomqtt.Will | None = None, max_unread: int = MAX_WAITING
) -> AsyncIterator[aiomqtt.Client]:
    """Connect inside the block as the client `name`. `will` is published when this client is gone.

    Raise `BrokerError` if the connection cannot be made or ends, `UserError` for an unreadable file.
    """
    parts, limits = urlsplit(fleet.broker), Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    limits.MaximumPacketSize = MAX_PACKET
    client = aiomqtt.Client(
        parts.hostname or "",
        parts.port or (8883 if fleet.tls else 1883),
        username=fleet.username or None,
        password=_password(fleet.password_file),
        logger=quiet,
        identifier=name,
        protocol=aiomqtt.ProtocolVersion.V5,
        will=will,
        timeout=TIMEOUT,
        keepalive=KEEPALIVE,
        max_queued_incoming_messages=max_unread,
        properties=limits,
        tls_context=await asyncio.to_thread(_tls_context, fleet) if fleet.tls else None,
    )
    try:
        async with client:
            yield client
    except (aiomqtt.MqttError, UnicodeError) as error:  # the latter: a host that is no name
        raise BrokerError(
            f"the connection to the broker {fleet.broker} failed: {error.__cause__ or error}; check the "
            "address, TLS at both ends, the certificates, and that no other client has this name"
        ) from error
    finally:
        cast(Any, client)._client._sock_close()  # aiomqtt leaves it open after a failure


async def subscribe(client: aiomqtt.Client, topic: str) -> None:
    """Subscribe with QoS 1. Raise `BrokerError` if the broker denies it; some grant it and deliver none."""
    for code in await client.subscribe(topic, qos=1):
        if isinstance(code, ReasonCode) and code.is_failure:
            raise BrokerError(f"the broker does not let this client listen to {topic} ({code})")


def _password(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8").strip() if file else None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"fleet.password_file {file} cannot be read: {error}") from error


def _tls_context(fleet: FleetSection) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=path_of(fleet.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if fleet.cert:
            # The empty password keeps OpenSSL from prompting for an encrypted key's.
            context.load_cert_chain(fleet.cert, fleet.key, password=b"")
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"fleet.ca, fleet.cert or fleet.key cannot be used: {error}") from error
    return context
