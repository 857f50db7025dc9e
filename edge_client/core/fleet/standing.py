"""The orders that stand: the fleet's configuration, this device's own, and the kill switch.

Driven by `edge_client.core.fleet.machine`: `judge` says what an arriving payload is, `hold` takes it,
`expire` ends what has run out. An order holds until its end and not longer, also when no newer
one can arrive: whoever cuts the broker off cannot freeze a fleet for ever. Its revision is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from edge_client.core.fleet.orders import (
    ALL,
    TOLERANCE,
    Addressee,
    Clock,
    Order,
    OrderKind,
    OrderRefused,
    Reason,
    Verify,
    hash_of,
    unseal,
    wrong_keys,
)
from edge_client.core.fleet.payloads import ConfigFault, Fault, Kill

Apply = Callable[[Mapping[str, Any]], list[str]]
"""The fleet's values, merged -> what is wrong with them, in sentences; none if they hold from now on."""

MAX_FAULTS = 16


class Stream(Enum):
    """One line of revisions, each newer than the one before."""

    FLEET = "fleet"
    DEVICE = "device"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class FleetOrders:
    """What the fleet wants of the daemon now. Local settings beat `values`; nothing local beats `kill`."""

    kill: Kill = Kill.NONE
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    """An order that stands."""

    order: Order
    payload: bytes  # as it came, signature and all: it is checked again after a restart


class Standing:
    """`allowed` are the settings that a fleet may set; None leaves that to `apply`."""

    def __init__(
        self, tenant: str, device: str, verify: Verify, apply: Apply, allowed: frozenset[str] | None = None
    ) -> None:
        self._whom = {
            Stream.FLEET: Addressee(OrderKind.CONFIG, tenant, ALL),
            Stream.DEVICE: Addressee(OrderKind.CONFIG, tenant, device),
            Stream.KILL: Addressee(OrderKind.KILL, tenant, ALL),
        }
        self._verify, self._apply, self._allowed = verify, apply, allowed
        self._held = dict[Stream, Held]()
        self.revs = dict.fromkeys(Stream, 0)
        self.signed_at = 0.0

    @property
    def orders(self) -> FleetOrders:
        held = self._held.get(Stream.KILL)
        return FleetOrders((held.order.mode if held else None) or Kill.NONE, self._merged(self._held))

    @property
    def hash(self) -> str:
        return hash_of(self._merged(self._held))

    @property
    def payloads(self) -> dict[Stream, bytes]:
        """What stands, as it came."""
        return {stream: held.payload for stream, held in self._held.items()}

    @property
    def expires_at(self) -> float | None:
        """When the next order ends, seconds since 1970."""
        return min((held.order.not_after + TOLERANCE for held in self._held.values()), default=None)

    def clock(self, wall: float) -> Clock:
        return Clock(wall, self.signed_at)

    def restore(self, payloads: Mapping[Stream, bytes], revs: Mapping[Stream, int], signed_at: float) -> None:
        """What stood before a restart, but for what no key signed that is trusted today."""
        self.revs |= revs
        self.signed_at = signed_at
        for stream, payload in payloads.items():
            try:
                order = unseal(payload, self._verify)
                self._whom[stream].check(order)
                _check_content(stream, order, self._allowed)
            except OrderRefused:
                continue
            self._held[stream] = Held(order, payload)

    def reapply(self) -> list[str]:
        """Hand the merged values over once more, after a restart or an end; what is wrong with them."""
        return self._apply(self._merged(self._held))

    def judge(self, stream: Stream, payload: bytes, wall: float) -> Order | None:
        """The order if it is a new one to take, None if it stands already. Raises `OrderRefused`.

        An empty payload is a retained message that was cleared: what stands goes on until its end, since
        anybody who can write to the topic can clear it.
        """
        held = self._held.get(stream)
        if not payload or (held and held.payload == payload):
            return None
        order = unseal(payload, self._verify)
        self._whom[stream].check(order)
        if order.rev <= self.revs[stream]:
            raise OrderRefused(
                Reason.REPLAYED,
                f"revision {order.rev} is not newer than {self.revs[stream]}, which this device has seen",
                order,
            )
        self.clock(wall).check(order)
        _check_content(stream, order, self._allowed)
        return order

    def hold(self, stream: Stream, order: Order, payload: bytes) -> None:
        """It stands from now on. Raises `OrderRefused` if its values cannot be applied; nothing changes."""
        after = self._held | {stream: Held(order, payload)}
        errors = [] if stream is Stream.KILL else self._apply(self._merged(after))
        if errors:
            raise OrderRefused(Reason.NOT_APPLIED, "; ".join(errors), order, _blamed(order, errors))
        self._held = after
        self.revs[stream] = order.rev
        self.signed_at = max(self.signed_at, order.at)

    def expire(self, wall: float) -> list[Stream]:
        """End what has run out; which."""
        clock = self.clock(wall)
        over = [stream for stream, held in self._held.items() if clock.has_passed(held.order.not_after)]
        for stream in over:
            del self._held[stream]
        return over

    def _merged(self, held: Mapping[Stream, Held]) -> dict[str, Any]:
        """The device's own values over the fleet's."""
        streams = [
            held[stream].order.values or {} for stream in (Stream.FLEET, Stream.DEVICE) if stream in held
        ]
        return {key: value for values in streams for key, value in values.items()}


def _check_content(stream: Stream, order: Order, allowed: frozenset[str] | None) -> None:
    wanted = order.mode if stream is Stream.KILL else order.values
    if wanted is None:
        raise OrderRefused(Reason.MALFORMED, "it does not say what is wanted", order)
    wrong = {} if stream is Stream.KILL else wrong_keys(order.values or {}, allowed)
    if wrong:
        told = ", ".join(f"{key} ({fault.value.replace('_', ' ')})" for key, fault in wrong.items())
        faults = tuple(ConfigFault(fault=fault, key=key) for key, fault in wrong.items())[:MAX_FAULTS]
        raise OrderRefused(Reason.KEYS, f"a fleet may not set {told}", order, faults)


def _blamed(order: Order, errors: list[str]) -> tuple[ConfigFault, ...]:
    """Which of the order's keys the sentences name; the sentences themselves may quote what is local."""
    keys = [key for key in order.values or {} if any(key in error for error in errors)]
    named = tuple(ConfigFault(fault=Fault.BAD_VALUE, key=key) for key in keys[:MAX_FAULTS])
    return named or (ConfigFault(fault=Fault.NOT_APPLIED),)
