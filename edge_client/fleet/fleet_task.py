"""Runs a device in its fleet: a background task beside the product, never on a token's path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiomqtt

from common.errors import ForerunError, UserError
from edge_client.fleet.desired import DesiredState
from edge_client.fleet.document import PayloadError, desired_topic, report, topic
from edge_client.fleet.keys import read_public, verifier
from edge_client.fleet.mqtt import connected, subscribe
from edge_client.process.paths import make_private, write_private
from edge_client.settings import FleetSection

if TYPE_CHECKING:
    from edge_client.fleet.follower import FleetFollower

logger = logging.getLogger(__name__)

LONGEST_WAIT = 60.0
"""Seconds between two checks of the wall clock, which may be set at any time."""

FIRST_BACKOFF, MAX_BACKOFF = 1.0, 120.0
"""Seconds before the first reconnect, doubled up to the last: a fleet reconnects over a minute."""

STEADY_TIME = 60.0
"""Seconds of connection after which the backoff starts anew."""

GOODBYE_TIME = 1.0
"""Seconds that a stopping daemon gives the broker."""


def backoff(failures: int, chance: float) -> float:
    """Return the seconds to the next attempt: doubled, and drawn from the upper half ("equal jitter")."""
    return min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * chance)


def _end_if_cancelled() -> None:
    """Raise `CancelledError` where `wait_for` of Python 3.11, below aiomqtt, swallowed it."""
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError


class Fleet:
    """Runs the device's part in its fleet. Used from its event loop.

    Raises `UserError` for an unreadable public key.
    """

    def __init__(self, settings: FleetSection, folder: Path, daemon: FleetFollower) -> None:
        self._settings, self._daemon, self._state = settings, daemon, folder / "fleet.json"
        self._status = topic(settings.tenant, settings.device, "status")
        key = read_public(settings.public_key) if settings.public_key else b""  # empty: nothing is believed
        self._desired = DesiredState(settings.tenant, key.hex(), verifier(key), daemon.apply, daemon.obey)
        self._awake = asyncio.Event()
        self._is_connected = False
        self._error = self._refusal = ""

    async def run(self) -> None:
        """Run until cancelled. No broker can end it. Raise `UserError` for a damaged state file."""
        await self._load()
        failures = 0
        while True:
            began_at, reason = time.monotonic(), ""
            self._settle()
            try:
                await self._serve()
            except ForerunError as error:
                reason = str(error)
            except Exception as error:  # outermost frame: a broker must not end the daemon
                logger.exception("! the fleet task failed")
                reason = f"the fleet task failed: {error}"
            _end_if_cancelled()
            if not self._error:  # once, not at every attempt
                logger.warning("! %s", reason)
            self._error = reason
            failures = 1 if time.monotonic() - began_at >= STEADY_TIME else failures + 1
            await asyncio.sleep(backoff(failures, random.random()))

    def wake(self) -> None:
        """Wake the task, because a fact that it reports has changed."""
        self._awake.set()

    def status(self) -> dict[str, Any]:
        """Return the status for /v1/status. It stays on the device, so it may hold sentences."""
        desired = self._desired
        return {
            "broker": self._settings.broker,
            "connected": self._is_connected,
            "error": self._error,  # the last one, until a connection works
            "kill": desired.kill.value,
            "applied": desired.applied,
            "rejected": desired.rejected,
            "last_refusal": desired.last_refusal,
        }

    async def _serve(self) -> None:
        """Hold one connection. Raise `ForerunError` when it cannot be made or has ended."""
        settings, will = self._settings, aiomqtt.Will(self._status, self._death(), qos=1, retain=True)
        async with connected(settings, settings.device, will) as client:
            await subscribe(client, desired_topic(settings.tenant))
            logger.info("> %s joined its fleet at the broker %s", settings.device, settings.broker)
            self._is_connected, self._error = True, ""
            listening = asyncio.create_task(self._listen(client.messages))
            listening.add_done_callback(lambda _: self.wake())
            try:
                await self._report(client, listening)
            except asyncio.CancelledError:
                await self._say_goodbye(client)
                raise
            finally:
                self._is_connected = False
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, messages: AsyncIterator[aiomqtt.Message]) -> None:
        """Take documents, and save each before it is applied."""
        async for message in messages:
            if self._desired.take(message.payload):
                await self._save()
                self.wake()
            self._log_refusal()

    async def _load(self) -> None:
        """Load the last run's documents in a thread, since SD cards are slow. Raise `UserError`."""
        try:
            self._desired.load(await asyncio.to_thread(self._state.read_bytes))
        except FileNotFoundError:
            pass
        except (OSError, PayloadError) as error:
            raise UserError(
                f"the fleet's state {self._state} cannot be read: {error}. Without it old documents could be "
                "replayed; if no other program wrote it, delete it"
            ) from error

    async def _save(self) -> None:
        try:
            make_private(self._state.parent)
            await asyncio.to_thread(write_private, self._state, self._desired.dump())
        except (OSError, UserError) as error:
            self._desired.last_refusal = (
                f"the fleet's state {self._state} cannot be written: {error}; after a restart old documents "
                "could be replayed"
            )

    async def _report(self, client: aiomqtt.Client, listening: asyncio.Task[None]) -> None:
        """Report when a fact changes, and for the figures at each interval. The first one begins at random,
        as a fleet starts together. Raise `aiomqtt.MqttError` when the connection has ended."""
        interval, reported = self._settings.telemetry_interval, None
        due_at = time.monotonic() + interval * random.random()
        while not listening.done():
            self._awake.clear()
            self._settle()
            labels, figures = presence = self._presence()
            now = time.monotonic()
            if presence != reported or now >= due_at:
                due_at = now + interval if now >= due_at else due_at
                payload = report(labels, {"at": time.time(), **figures, **self._daemon.telemetry()})
                await client.publish(self._status, payload, qos=1, retain=True)
                reported = presence
            _end_if_cancelled()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LONGEST_WAIT, due_at - time.monotonic())):
                    await self._awake.wait()
        await listening

    async def _say_goodbye(self, client: aiomqtt.Client) -> None:
        """Publish our own end: the broker drops the will at a clean disconnect."""
        with contextlib.suppress(aiomqtt.MqttError, TimeoutError):
            async with asyncio.timeout(GOODBYE_TIME):
                await client.publish(self._status, self._death(), qos=1, retain=True)

    def _death(self) -> bytes:
        return report({"state": "offline"}, {"at": time.time()})

    def _presence(self) -> tuple[dict[str, str], dict[str, float | None]]:
        """Return the facts whose change is reported at once."""
        desired = self._desired
        labels = {"state": "online", **self._daemon.about(), "kill": desired.kill.value}
        return labels, {"applied": desired.applied, "refused": desired.refused}

    def _settle(self) -> None:
        self._desired.settle(time.time())
        self._log_refusal()

    def _log_refusal(self) -> None:
        if self._desired.last_refusal != self._refusal:
            self._refusal = self._desired.last_refusal
            logger.warning("! %s", self._refusal)
