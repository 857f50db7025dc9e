"""A device in its fleet: a background task beside the product.

Two loops meet here. The keeper's holds a connection, or waits for the next attempt. `_mind` looks at what has
arrived, at the time and at the telemetry's beat, and does what the machine asks; it runs without a connection
too, since orders end on time with or without a broker. Neither raises, and the product waits for neither.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from common.errors import UserError
from edge_client.core.fleet.discovery import Offer
from edge_client.core.fleet.effects import Changed, Effect, Offered, Publish, Run, Save
from edge_client.core.fleet.inbox import Inbox
from edge_client.core.fleet.machine import FleetMachine, Trust
from edge_client.core.fleet.memory import Memory
from edge_client.core.fleet.pace import Beat
from edge_client.core.fleet.payloads import CommandName, EventKind, Outcome
from edge_client.core.fleet.presence import About
from edge_client.core.fleet.record import encode
from edge_client.core.fleet.standing import FleetOrders
from edge_client.fleet.hooks import Errands, Hooks
from edge_client.fleet.keeper import Keeper
from edge_client.fleet.keys import verifier
from edge_client.fleet.settings import FleetSettings
from edge_client.fleet.store import StateFile

logger = logging.getLogger(__name__)

MESSAGES_AT_ONCE = 8
"""Looked at between two looks at the other tasks; each may cost a signature's check, 0.1 ms."""

LONGEST_WAIT = 60.0
"""Seconds between two looks at the wall clock, which may be set at any time."""


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """For /v1/status and `forerun doctor`. It stays on the device, so it may have sentences."""

    broker: str
    connected: bool
    since: float | None  # of the connection or of its loss, seconds since 1970
    error: str  # the last one, until a connection works
    denied_topics: tuple[str, ...]  # that the broker did not let this device write or hear
    kill: str
    revs: dict[str, int]
    refused: dict[str, int]  # orders, by reason
    last_refusal: str
    received: int
    dropped: int  # messages: too large, of no topic of ours, or too many
    throttled: int  # times that reading paused
    events_waiting: int
    events_dropped: int

    def as_json(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


class Fleet:
    """`run` is a task that ends by cancellation only; everything else is called from its event loop."""

    def __init__(
        self,
        settings: FleetSettings,
        about: About,
        hooks: Hooks,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._wall, self._chance = settings, wall, chance
        own = {CommandName.PING: _pong, CommandName.REPORT: self._report, CommandName.REBIRTH: self._rebirth}
        self._errands = Errands(hooks, own, self._on_ran)
        trust = Trust(
            verifier(settings.keys),
            verifier((*settings.keys, *settings.verifier_keys)),
            settings.allowed_settings,
            settings.allowed_endpoints,
        )
        self._machine = FleetMachine(settings.topics, trust, self._errands.apply)
        self._machine.on_about(about, 0.0, 0.0)
        self._inbox = Inbox(settings.topics)
        self._state = StateFile(settings.state_dir)
        self._wake = asyncio.Event()
        self._keeper = Keeper(settings, self._machine, self._on_message, self._wake.set, wall, chance)
        self._beat: Beat | None = None
        self._measure_now = False
        self._ran = list[tuple[str, Outcome]]()
        self._pauses_told = 0

    async def run(self) -> None:
        """Until cancelled; then the device says goodbye. Raises `UserError` for files that cannot be read."""
        context = await asyncio.to_thread(self._settings.broker.context)
        memory = await asyncio.to_thread(self._state.load)
        if self._settings.telemetry_interval:
            self._beat = Beat(self._settings.telemetry_interval, self._now(), self._chance())
        self._machine.on_start(memory, self._wall())
        await self._pump()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._mind())
                group.create_task(self._keeper.run(context))
        finally:
            self._errands.cancel()

    def tell(self, about: About) -> None:
        """Something that the birth tells has changed."""
        self._machine.on_about(about, self._now(), self._wall())
        self._wake.set()

    def event(self, kind: EventKind, number: float | None = None) -> None:
        """Something happened; it leaves when it can, within an hour."""
        self._machine.on_event(kind, self._now(), self._wall(), number)
        self._wake.set()

    @property
    def orders(self) -> FleetOrders:
        """What the fleet wants now."""
        return self._machine.orders

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Verifiers that may be used."""
        return self._machine.offers

    def status(self) -> FleetStatus:
        """How it is going."""
        machine, keeper, counts = self._machine, self._keeper, self._inbox.counts
        return FleetStatus(
            broker=str(self._settings.broker),
            connected=keeper.connected,
            since=keeper.since,
            error=keeper.error,
            denied_topics=tuple(keeper.denied),
            kill=machine.orders.kill.value,
            revs={stream.value: rev for stream, rev in machine.revs.items()},
            refused={reason.value: count for reason, count in machine.refused.items() if count},
            last_refusal=machine.last_refusal,
            received=counts.received,
            dropped=counts.oversize + counts.unexpected + counts.crowded,
            throttled=keeper.throttle.num_pauses,
            events_waiting=len(machine.events),
            events_dropped=machine.events.dropped,
        )

    # The mind

    async def _mind(self) -> None:
        while True:
            self._wake.clear()
            busy = False
            try:
                busy = await self._think()
            except Exception:  # outermost frame: nothing that arrives may end the daemon
                logger.exception("! a message of the fleet could not be handled")
            if busy:
                await asyncio.sleep(0)
            else:
                await self._rest()

    async def _think(self) -> bool:
        """One turn; whether messages are left."""
        now, wall = self._now(), self._wall()
        for _ in range(MESSAGES_AT_ONCE):
            message = self._inbox.take()
            if message is None:
                break
            self._machine.on_message(*message, now, wall)
        ran, self._ran = self._ran, []
        for command_id, outcome in ran:
            self._machine.on_ran(command_id, outcome, wall)
        self._machine.on_timer(now, wall)
        self._notice_floods(now, wall)
        await self._pump()
        if self._keeper.connected:
            await self._tell_events()
            await self._tell_telemetry()
        return len(self._inbox) > 0

    async def _rest(self) -> None:
        """Until something comes, or is due."""
        now = self._now()
        machine_at = self._machine.next_at(now, self._wall())
        beat_at = self._beat.due_at if self._beat is not None and self._keeper.connected else None
        due_at = min(at for at in (now + LONGEST_WAIT, machine_at, beat_at) if at is not None)
        try:
            async with asyncio.timeout(max(0.001, due_at - now)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _pump(self) -> None:
        """Do what the machine asks, in order. Without a connection nothing is published: a birth and a report
        follow when there is one, and a command that comes again is acknowledged again."""
        for effect in self._machine.drain():
            await self._do(effect)

    async def _do(self, effect: Effect) -> None:
        match effect:
            case Publish():
                await self._keeper.publish(effect.topic, effect.payload, effect.retain, effect.expiry)
            case Save():
                await self._save(effect.memory)
            case Changed():
                self._errands.orders(effect.orders)
            case Run():
                self._errands.run(effect.id, effect.name)
            case Offered():
                self._errands.offers(effect.offers)

    async def _save(self, memory: Memory) -> None:
        try:
            await asyncio.to_thread(self._state.save, memory)
        except UserError as error:
            self._machine.last_refusal = str(error)
            logger.error("! %s", error)

    async def _tell_events(self) -> None:
        events, topic = self._machine.events, self._settings.topics.event
        while topic not in self._keeper.denied and (found := events.take(self._now())) is not None:
            event, worth = found
            if not await self._keeper.publish(topic, encode(event), expiry=max(1, int(worth))):
                return
            events.on_told(event.dropped)

    async def _tell_telemetry(self) -> None:
        beat, now = self._beat, self._now()
        is_due = beat is not None and now >= beat.due_at
        if beat is not None and is_due:
            beat.on_due(now)
        if not (is_due or self._measure_now):
            return
        self._measure_now = False
        expiry = int(3 * (self._settings.telemetry_interval or LONGEST_WAIT))
        for part, payload in self._errands.telemetry().items():
            await self._keeper.publish(self._settings.topics.telemetry(part), payload, expiry=expiry, qos=0)

    def _notice_floods(self, now: float, wall: float) -> None:
        pauses = self._keeper.throttle.num_pauses
        if pauses > self._pauses_told:
            self._pauses_told = pauses
            self._machine.on_event(EventKind.FLOODED, now, wall)

    # What the other tasks call

    def _on_message(self, topic: str, payload: bytes) -> None:
        self._inbox.put(topic, payload)
        self._wake.set()

    def _on_ran(self, command_id: str, outcome: Outcome) -> None:
        self._ran.append((command_id, outcome))
        self._wake.set()

    def _report(self) -> None:
        self._measure_now = True
        self._machine.on_report_asked()

    def _rebirth(self) -> None:
        self._machine.on_birth_asked(self._now(), self._wall())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _pong() -> None:
    """A ping needs its acknowledgement only."""
