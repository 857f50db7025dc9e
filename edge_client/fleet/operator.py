"""An operator's side of a fleet: who is there, signed orders, and what became of them (`forerun fleet`)."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from common.errors import UnavailableError, UserError
from edge_client.core.fleet.names import DeviceTopics, TenantTopics
from edge_client.core.fleet.orders import (
    ALL,
    Order,
    OrderKind,
    OrderRefused,
    Sign,
    Verify,
    check_lifetime,
    seal,
    unseal,
)
from edge_client.core.fleet.payloads import Kill, Presence, Reported, VerifierStatus
from edge_client.core.fleet.presence import Roster
from edge_client.core.fleet.record import MAX_PAYLOAD, Record, SchemaError, decode
from edge_client.fleet.mqtt import Connection
from edge_client.fleet.settings import BrokerSettings
from edge_client.fleet.words import BrokerError

MAX_TOPICS = 50_000
"""Whose newest payload an operator keeps: a broker cannot make it more."""

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes orders of one tenant. `wall` is the clock, seconds since 1970."""

    tenant: str
    sign: Sign
    wall: Callable[[], float]

    def config(self, device: str | None, values: Mapping[str, Any], lifetime: float) -> tuple[int, bytes]:
        """For a device, or all: its revision and its payload. Replaces all that the same addressee had."""
        return self._order(OrderKind.CONFIG, device or ALL, lifetime, values=values)

    def kill(self, mode: Kill, lifetime: float) -> tuple[int, bytes]:
        """For every device."""
        return self._order(OrderKind.KILL, ALL, lifetime, mode=mode)

    def command(self, device: str, command_id: str, name: str, lifetime: float) -> bytes:
        """For one device, once."""
        return self._order(OrderKind.COMMAND, device, lifetime, id=command_id, name=name)[1]

    def offer(self, name: str, status: VerifierStatus, lifetime: float) -> bytes:
        """Of a verifier, for every device."""
        return self._order(OrderKind.VERIFIER, ALL, lifetime, id=name, status=(status,))[1]

    def _order(self, kind: OrderKind, device: str, lifetime: float, **content: Any) -> tuple[int, bytes]:
        """Revisions are milliseconds since 1970: operators need not ask anybody for the last one. Raises
        `UserError` for what no device would take."""
        if device != ALL:
            DeviceTopics(self.tenant, device)  # checks the names
        at = self.wall()
        rev = int(at * 1000)
        not_after = at + check_lifetime(lifetime)
        order = Order(
            kind=kind, tenant=self.tenant, device=device, rev=rev, at=at, not_after=not_after, **content
        )
        try:
            return rev, seal(order, self.sign)
        except SchemaError as error:
            raise UserError(f"no device would take this: {error}") from error


class Operator:
    """A connection that keeps the newest payload of each topic it listens to. An async context manager."""

    def __init__(self, broker: BrokerSettings, tenant: str, context: ssl.SSLContext | None) -> None:
        self.topics = TenantTopics(tenant)
        self.newest = dict[str, bytes]()
        self._fresh = dict[str, None]()  # topics with something new, in order
        self._heard = asyncio.Event()
        name = f"forerun-operator-{secrets.token_hex(4)}"
        self._connection = Connection(broker, name, self._on_message, context)
        self._timeout = broker.timeout

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__()

    def device(self, name: str) -> DeviceTopics:
        """Its topics. Raises `UserError` for a name that no device can have."""
        return self.topics.device(name)

    async def listen(self, *topics: str) -> None:
        """From now on. Raises `BrokerError`."""
        for topic in topics:
            if not await self._connection.subscribe(topic):
                raise BrokerError(f"the broker does not let this client listen to {topic}")

    async def publish(
        self, topic: str, payload: bytes, retain: bool = True, expiry: int | None = None
    ) -> None:
        """Raises `DeniedError` or `BrokerError`."""
        await self._connection.publish(topic, payload, retain=retain, expiry=expiry)

    async def settle(self, wait: float) -> None:
        """Returns when nothing has come for `wait` seconds: what is retained comes at once."""
        while True:
            self._heard.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._heard.wait()
            except TimeoutError:
                return

    async def changes(self) -> AsyncGenerator[tuple[str, bytes], None]:
        """What comes, the newest of each topic, until the connection is lost, which raises `BrokerError`."""
        lost = asyncio.ensure_future(self._connection.lost())
        try:
            while True:
                self._heard.clear()
                for topic in self._take_fresh():
                    yield topic, self.newest[topic]
                heard = asyncio.ensure_future(self._heard.wait())
                await asyncio.wait({lost, heard}, return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
                if lost.done():
                    raise lost.result()
        finally:
            lost.cancel()

    async def answer(self, topic: str, kind: type[R], holds: Callable[[R], bool], wait: float) -> R:
        """The first payload of the topic that holds. Raises `UnavailableError` if none came in time."""
        try:
            async with asyncio.timeout(wait), aclosing(self.changes()) as changes:
                async for found, payload in changes:
                    record = read(kind, payload) if found == topic else None
                    if record is not None and holds(record):
                        return record
        except TimeoutError:
            pass
        raise UnavailableError(f"no answer came on {topic} within {wait:g} s; is the device connected?")

    def roster(self) -> Roster:
        """Who is there, by what has come."""
        roster = Roster()
        for topic, payload in self.newest.items():
            name = self.topics.device_of(topic)
            found = read(Presence, payload) if name else None
            if name and found:
                roster.on_presence(name, found)
        return roster

    def reported(self, device: str) -> Reported | None:
        """What a device says that it holds."""
        return read(Reported, self.newest.get(self.device(device).reported, b""))

    def offers(self, verify: Verify) -> dict[str, tuple[VerifierStatus, bool]]:
        """Verifiers by name, and whether a key that `verify` knows signed the offer."""
        found = dict[str, tuple[VerifierStatus, bool]]()
        for topic, payload in self.newest.items():
            name = self.topics.verifier_of(topic)
            offer = read_offer(payload, verify) if name else None
            if name and offer:
                found[name] = offer
        return found

    def _take_fresh(self) -> list[str]:
        fresh, self._fresh = list(self._fresh), {}
        return fresh

    def _on_message(self, topic: str, payload: bytes) -> None:
        if len(payload) <= MAX_PAYLOAD and (topic in self.newest or len(self.newest) < MAX_TOPICS):
            self.newest[topic] = payload
            self._fresh[topic] = None
        self._heard.set()


def read(kind: type[R], payload: bytes) -> R | None:
    """None for what is none: strangers may write there."""
    try:
        return decode(kind, payload)
    except SchemaError:
        return None


def read_offer(payload: bytes, verify: Verify) -> tuple[VerifierStatus, bool] | None:
    """A verifier's status, and whether it was signed; None for what is none."""
    plain = read(VerifierStatus, payload)
    if plain is not None:
        return plain, False
    try:
        order = unseal(payload, verify)
    except OrderRefused:
        return None
    return (order.status[0], True) if order.status else None
