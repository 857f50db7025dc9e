"""A device's side of the fleet, sans-IO: what arrives and what time it is go in, effects come out in order.

Nothing that arrives raises: what breaks a rule is counted by reason, the last one is kept in words for the
person at the device, and an answer is published only to what a trusted key signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_client.core.fleet.commands import Commands
from edge_client.core.fleet.discovery import Discovery, Offer
from edge_client.core.fleet.effects import Changed, Effect, Offered, Publish, Run, Save
from edge_client.core.fleet.memory import Memory
from edge_client.core.fleet.names import DeviceTopics
from edge_client.core.fleet.orders import OrderRefused, Reason, Verify
from edge_client.core.fleet.pace import EventQueue
from edge_client.core.fleet.payloads import (
    Ack,
    ConfigFault,
    Event,
    EventKind,
    Fault,
    Outcome,
    Presence,
    Reported,
    State,
    stamp,
)
from edge_client.core.fleet.presence import About, OwnPresence
from edge_client.core.fleet.record import LARGEST, Record, SchemaError, encode
from edge_client.core.fleet.standing import Apply, FleetOrders, Standing, Stream

ACK_EXPIRY = 3600
"""Seconds that a broker keeps an acknowledgement for an operator who is away."""

LOOK_AGAIN_TIME = 60.0
"""Seconds between looks at an order that this device's clock does not allow yet."""

SILENT = frozenset({Reason.REPLAYED, Reason.ELSEWHERE, Reason.UNSIGNED})
"""What is not answered: a broker can cause these as often as it likes."""

FAULTS = {Reason.EXPIRED: Fault.EXPIRED, Reason.CLOCK: Fault.CLOCK, Reason.MALFORMED: Fault.MALFORMED}


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom a device believes, and how far."""

    orders: Verify  # the fleet's keys
    verifiers: Verify  # those keys, and keys that may sign offers of verifiers only
    allowed_settings: frozenset[str] | None = None  # that a fleet may set; None: `apply` knows
    allowed_endpoints: Sequence[str] = ()  # patterns of verifiers that may come without a signature


class FleetMachine:
    """Driven by `edge_client.fleet.fleet`: after each input it does what `drain` gives, and calls `on_timer`
    by `next_at`. `now` is monotonic, `wall` is not; both in seconds."""

    def __init__(self, topics: DeviceTopics, trust: Trust, apply: Apply) -> None:
        self.topics = topics
        tenant, device = topics.tenant, topics.device
        self._standing = Standing(tenant, device, trust.orders, apply, trust.allowed_settings)
        self._commands = Commands(tenant, device, trust.orders)
        self._discovery = Discovery(tenant, trust.verifiers, trust.allowed_endpoints)
        self._own = OwnPresence()
        self.events = EventQueue()
        self.refused = dict.fromkeys(Reason, 0)
        self.last_refusal = ""  # a sentence, for the person at the device
        self._effects = list[Effect]()
        self._streams = {
            topics.desired: Stream.DEVICE,
            topics.shared.fleet_config: Stream.FLEET,
            topics.shared.kill: Stream.KILL,
        }
        self._bad = dict[Stream, bytes]()  # refused, and not to be tried again
        self._early = dict[Stream, bytes]()  # refused by the clock, and to be looked at again
        self._look_at: float | None = None
        self._told = FleetOrders()
        self._verdict: tuple[int | None, tuple[ConfigFault, ...]] = (None, ())
        self._reported: Reported | None = None
        self._connected = False
        self.has_rival = False  # another process was born under our name, as this connection heard

    # What the driver and the person at the device ask

    @property
    def orders(self) -> FleetOrders:
        """What the fleet wants now."""
        return self._standing.orders

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Verifiers that may be used."""
        return self._discovery.offers

    @property
    def epoch(self) -> int:
        """Of the connection that is or was last."""
        return self._own.epoch

    @property
    def revs(self) -> Mapping[Stream, int]:
        """The newest revision of each line of orders that this device has taken."""
        return self._standing.revs

    def drain(self) -> list[Effect]:
        """What to do, in this order. Each effect is given once."""
        effects, self._effects = self._effects, []
        return effects

    def next_at(self, now: float, wall: float) -> float | None:
        """When `on_timer` is due, monotonic."""
        expires_at = self._standing.expires_at
        ends = (
            [] if expires_at is None else [now + max(0.0, expires_at - self._standing.clock(wall).now) + 1.0]
        )
        birth_at = self._own.birth_at if self._connected else None
        return min((*ends, *(at for at in (birth_at, self._look_at) if at is not None)), default=None)

    # Inputs

    def on_start(self, memory: Memory, wall: float) -> None:
        """The daemon starts, and this is what its state file says: what stood stands, broker or not."""
        self._own.epoch = memory.epoch
        self._standing.restore(memory.held, memory.revs, memory.signed_at)
        self._commands.restore(memory.commands)
        self._standing.expire(wall)
        errors = self._standing.reapply() if self._standing.orders.values else []
        if errors:
            self.last_refusal = "the configuration that stood before the restart: " + "; ".join(errors)
        self._tell_orders()

    def connecting(self, wall: float) -> Presence:
        """A connection is about to be made: its last will, which ends it under a new epoch."""
        epoch = min(max(self._own.epoch + 1, int(stamp(wall) * 1000)), LARGEST)
        will = self._own.begin(epoch, wall)
        self.has_rival = False
        self._save()
        return will

    def on_connected(self, now: float, wall: float) -> None:
        """It is made, and everything is subscribed to."""
        self._connected, self._reported = True, None
        self._be_born(now, wall)
        self._report()

    def on_lost(self) -> None:
        """It is over. Orders go on."""
        self._connected = False

    def on_about(self, about: About, now: float, wall: float) -> None:
        """The daemon changed; a birth tells it, now or when it may."""
        self._own.on_about(about)
        self.on_timer(now, wall)

    def on_event(self, kind: EventKind, now: float, wall: float, number: float | None = None) -> None:
        """Something happened that an operator wants to know."""
        event = Event(kind=kind, at=stamp(wall), epoch=self.epoch, number=number)
        try:
            encode(event)
        except SchemaError as error:  # one that can never leave would stand before all others
            self.last_refusal = f"an event did not leave: {error}"
            return
        self.events.add(event, now)

    def on_message(self, topic: str, payload: bytes, now: float, wall: float) -> None:
        """It arrived. Never raises."""
        try:
            self._dispatch(topic, payload, now, wall)
        except OrderRefused as error:
            self._refuse(error, now, wall)

    def on_ran(self, command_id: str, outcome: Outcome, wall: float) -> None:
        """A command was carried out, or failed."""
        self._commands.on_done(command_id, outcome)
        self._save()
        self._ack(command_id, outcome, wall)

    def death(self, wall: float) -> Presence:
        """What to leave behind when the daemon stops on its own."""
        return Presence(state=State.OFFLINE, epoch=self.epoch, at=stamp(wall))

    def on_birth_asked(self, now: float, wall: float) -> None:
        """Tell anew who we are."""
        if self._connected:
            self._be_born(now, wall)

    def on_report_asked(self) -> None:
        """Tell anew what is held."""
        self._reported = None
        self._report()

    def on_timer(self, now: float, wall: float) -> None:
        """Something may be due."""
        over = self._standing.expire(wall)
        if over:
            self._expired(over, now, wall)
        if self._discovery.expire(self._standing.clock(wall)):
            self._effects.append(Offered(self.offers))
        if self._look_at is not None and now >= self._look_at:
            early, self._early, self._look_at = self._early, {}, None
            for stream, payload in early.items():
                self._take_guarded(stream, payload, now, wall)
        birth_at = self._own.birth_at
        if self._connected and birth_at is not None and now >= birth_at:
            self._be_born(now, wall)

    # Inside

    def _dispatch(self, topic: str, payload: bytes, now: float, wall: float) -> None:
        stream = self._streams.get(topic)
        command = self.topics.command_of(topic)
        verifier = self.topics.shared.verifier_of(topic)
        if stream is not None:
            self._take_guarded(stream, payload, now, wall)
        elif topic == self.topics.status:
            self._hear_ourselves(payload, now, wall)
        elif verifier is not None:
            if self._discovery.on_payload(verifier, payload, self._standing.clock(wall)):
                self._effects.append(Offered(self.offers))
        elif command is not None:
            self._command(command, payload, wall)

    def _hear_ourselves(self, payload: bytes, now: float, wall: float) -> None:
        if self._own.on_status(payload):
            self.has_rival = True
            self.on_event(EventKind.TAKEN_OVER, now, wall)
        self.on_timer(now, wall)

    def _take_guarded(self, stream: Stream, payload: bytes, now: float, wall: float) -> None:
        if self._bad.get(stream) == payload:
            return
        try:
            self._take(stream, payload, now, wall)
        except OrderRefused as error:
            self._keep_refused(stream, payload, error, now)
            self._refuse(error, now, wall)

    def _take(self, stream: Stream, payload: bytes, now: float, wall: float) -> None:
        order = self._standing.judge(stream, payload, wall)
        if order is None:
            return
        self._standing.hold(stream, order, payload)
        self._bad.pop(stream, None)
        self._early.pop(stream, None)
        self._verdict = (None, ())
        self._save()
        self.on_event(EventKind.ORDER_APPLIED, now, wall, number=float(order.rev))
        if not self._standing.clock(wall).is_set:
            self.on_event(EventKind.CLOCK_WRONG, now, wall)
        self._tell_orders(now, wall)
        self._report()

    def _keep_refused(self, stream: Stream, payload: bytes, error: OrderRefused, now: float) -> None:
        if error.reason is Reason.CLOCK:
            self._early[stream] = payload
            self._look_at = self._look_at if self._look_at is not None else now + LOOK_AGAIN_TIME
        elif error.order is not None:
            self._bad[stream] = payload

    def _refuse(self, error: OrderRefused, now: float, wall: float) -> None:
        self.refused[error.reason] += 1
        self.last_refusal = f"an order was refused: {error}"
        self.on_event(EventKind.ORDER_REFUSED, now, wall)
        if error.order is None or error.reason in SILENT:
            return
        fault = ConfigFault(fault=FAULTS.get(error.reason, Fault.NOT_APPLIED))
        self._verdict = (error.order.rev, error.faults or (fault,))
        self._report()

    def _command(self, command_id: str, payload: bytes, wall: float) -> None:
        call = self._commands.on_payload(command_id, payload, self._standing.clock(wall))
        if call.name is not None:
            self._save()
            self._effects.append(Run(command_id, call.name))
        elif call.outcome is not None:
            self._ack(command_id, call.outcome, wall)

    def _expired(self, over: Sequence[Stream], now: float, wall: float) -> None:
        for _ in over:
            self.on_event(EventKind.ORDER_EXPIRED, now, wall)
        errors = self._standing.reapply() if set(over) != {Stream.KILL} else []
        if errors:
            self.last_refusal = "what is left after an order ended: " + "; ".join(errors)
        self._save()
        self._tell_orders(now, wall)
        self._report()

    def _tell_orders(self, now: float | None = None, wall: float = 0.0) -> None:
        orders = self._standing.orders
        if orders == self._told:
            return
        if now is not None and orders.kill is not self._told.kill:
            self.on_event(EventKind.KILL_CHANGED, now, wall)
        self._told = orders
        self._effects.append(Changed(orders))

    def _be_born(self, now: float, wall: float) -> None:
        self._publish(self.topics.status, self._own.birth(now, wall), retain=True)

    def _report(self) -> None:
        revs, (refused, faults) = self._standing.revs, self._verdict
        report = Reported(
            rev=revs[Stream.DEVICE],
            fleet_rev=revs[Stream.FLEET],
            kill_rev=revs[Stream.KILL],
            kill=self._standing.orders.kill,
            hash=self._standing.hash,
            ok=not faults,
            refused_rev=refused,
            errors=faults,
        )
        if self._connected and report != self._reported:
            self._reported = report
            self._publish(self.topics.reported, report, retain=True)

    def _ack(self, command_id: str, outcome: Outcome, wall: float) -> None:
        ack = Ack(id=command_id, outcome=outcome, at=stamp(wall), epoch=self.epoch)
        self._publish(self.topics.ack(command_id), ack, expiry=ACK_EXPIRY)

    def _publish(self, topic: str, record: Record, retain: bool = False, expiry: int | None = None) -> None:
        try:
            payload = encode(record)
        except (
            SchemaError
        ) as error:  # a clock beyond 2100 for example: nothing leaves, and the person is told
            self.last_refusal = f"a message did not leave: {error}"
            return
        self._effects.append(Publish(topic, payload, retain, expiry))

    def _save(self) -> None:
        standing = self._standing
        memory = Memory(
            self.epoch,
            standing.signed_at,
            dict(standing.revs),
            standing.payloads,
            dict(self._commands.remembered),
        )
        self._effects.append(Save(memory))
