"""Holds a connection to the broker: makes it, subscribes, and makes it again after a wait when it is lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from common.errors import ForerunError
from edge_client.core.fleet.machine import FleetMachine
from edge_client.core.fleet.pace import Backoff
from edge_client.core.fleet.payloads import EventKind
from edge_client.core.fleet.record import encode
from edge_client.fleet.mqtt import Connection, OnMessage, Throttle
from edge_client.fleet.settings import FleetSettings
from edge_client.fleet.words import TAKEN_OVER, BrokerError, DeniedError, by_reason

logger = logging.getLogger(__name__)

GOODBYE_TIME = 1.0
"""Seconds that a stopping daemon gives the broker."""


class Keeper:
    """`wake` is called when something changed; `wall` and `chance` are the clock and the dice."""

    def __init__(
        self,
        settings: FleetSettings,
        machine: FleetMachine,
        on_message: OnMessage,
        wake: Callable[[], None],
        wall: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._settings, self._machine = settings, machine
        self._on_message, self._wake = on_message, wake
        self._wall, self._chance = wall, chance
        self._backoff = Backoff(settings.first_backoff, settings.max_backoff)
        self._connection: Connection | None = None
        self.throttle = Throttle(settings.messages_per_second, settings.message_burst)
        self.since: float | None = None  # of the connection or of its loss, seconds since 1970
        self.error = ""
        self.denied = dict[str, None]()

    @property
    def connected(self) -> bool:
        """Whether something can be published."""
        return self._connection is not None

    async def run(self, context: ssl.SSLContext | None) -> None:
        """Until cancelled."""
        while True:
            began_at: float | None = None
            lost: BrokerError | None = None
            try:
                async with self._connect(context) as connection:
                    began_at = self._now()
                    await self._serve(connection)
            except BrokerError as error:
                lost = by_reason(self._settings.broker, TAKEN_OVER) if self._machine.has_rival else error
            except Exception as error:  # outermost frame: a broker must not end the daemon
                logger.exception("! the connection to the fleet's broker failed")
                lost = BrokerError(f"the connection to the broker failed: {error}")
            finally:
                self._connection = None
                self._machine.on_lost()
            self._on_lost(lost)
            self._backoff.on_lost(0.0 if began_at is None else self._now() - began_at)
            taken_over = lost is not None and lost.taken_over
            await asyncio.sleep(self._backoff.wait(self._chance(), hard=taken_over))

    async def publish(
        self, topic: str, payload: bytes, retain: bool = False, expiry: int | None = None, qos: int = 1
    ) -> bool:
        """Whether the broker has answered. What it denied is over as well, and kept in `denied`."""
        connection = self._connection
        if connection is None:
            return False
        try:
            await connection.publish(topic, payload, qos, retain, expiry)
        except DeniedError as error:
            self._deny(topic, str(error))
        except BrokerError:
            self._connection = None  # `run` hears of it from the connection
            return False
        return True

    def _connect(self, context: ssl.SSLContext | None) -> Connection:
        settings = self._settings
        will = self._machine.connecting(self._wall())
        self._wake()
        return Connection(
            settings.broker,
            settings.device,
            self._on_message,
            context,
            will=(settings.topics.status, encode(will)),
            throttle=self.throttle,
        )

    async def _serve(self, connection: Connection) -> None:
        """Subscribe, be born, and wait for the end. Raises `BrokerError`."""
        self.denied.clear()
        for topic in self._filters():
            if not await connection.subscribe(topic):
                self._deny(topic, f"the broker does not let this device listen to {topic}")
        self._connection, self.error, self.since = connection, "", self._wall()
        logger.info("> %s is in its fleet, by the broker %s", self._settings.device, self._settings.broker)
        self._machine.on_connected(self._now(), self._wall())
        self._wake()
        try:
            raise await connection.lost()
        except asyncio.CancelledError:
            await self._say_goodbye(connection)
            raise

    def _filters(self) -> list[str]:
        """Disjoint, since a message comes once for each filter. Offers last: their flood follows the rest."""
        topics = self._settings.topics
        shared = topics.shared
        own = [shared.kill, shared.fleet_config, topics.desired, topics.status, topics.commands]
        return [*own, shared.verifiers] if self._settings.discover else own

    async def _say_goodbye(self, connection: Connection) -> None:
        """A death of our own: a clean disconnect publishes no will."""
        death = self._machine.death(self._wall())
        try:
            async with asyncio.timeout(GOODBYE_TIME):
                await connection.publish(self._settings.topics.status, encode(death), retain=True)
        except (ForerunError, TimeoutError):
            connection.cut()  # so that the broker publishes the will

    def _on_lost(self, error: BrokerError | None) -> None:
        if error is None:
            return
        if not self.error:  # once, not at every attempt
            logger.warning("! %s", error)
            self.since = self._wall()
        self.error = str(error)
        if error.taken_over:
            self._machine.on_event(EventKind.TAKEN_OVER, self._now(), self._wall())

    def _deny(self, topic: str, words: str) -> None:
        if topic not in self.denied:
            logger.warning("! %s", words)
            self._machine.on_event(EventKind.PUBLISH_DENIED, self._now(), self._wall())
        self.denied[topic] = None

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
