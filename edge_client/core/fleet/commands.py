"""Commands: each is signed for one device, carried out at most once, and answered.

An id is remembered until its command expires, across restarts, so a broker that delivers one again (or a
year later) gets the same answer and nothing happens. Ids are never forgotten early: where there is no room
for more, the device says that it is busy. Only who holds the fleet's key can fill that room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_client.core.fleet.orders import (
    Addressee,
    Clock,
    Order,
    OrderKind,
    OrderRefused,
    Reason,
    Verify,
    unseal,
)
from edge_client.core.fleet.payloads import CommandName, Outcome

MAX_REMEMBERED = 256
MAX_COMMAND_LIFETIME = 3600.0
"""Seconds; a command is for now. It bounds how long an id is remembered."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A command that came. `outcome` is None while it is carried out, or if the daemon died meanwhile."""

    outcome: Outcome | None
    not_after: float


@dataclass(frozen=True, slots=True)
class Call:
    """What to do about a payload: run `name`, or else answer `outcome`, or nothing."""

    name: CommandName | None = None
    outcome: Outcome | None = None


class Commands:
    """Of one device."""

    def __init__(self, tenant: str, device: str, verify: Verify) -> None:
        self._whom = Addressee(OrderKind.COMMAND, tenant, device)
        self._verify = verify
        self.remembered = dict[str, Remembered]()

    def restore(self, remembered: Mapping[str, Remembered]) -> None:
        """After a restart: what was under way then has failed."""
        self.remembered = {
            name: Remembered(one.outcome or Outcome.FAILED, one.not_after) for name, one in remembered.items()
        }

    def on_payload(self, name: str, payload: bytes, clock: Clock) -> Call:
        """It came on the topic of the id `name`. Raises `OrderRefused` for what is nobody's command."""
        order = unseal(payload, self._verify)
        self._whom.check(order)
        if order.id != name:
            raise OrderRefused(Reason.ELSEWHERE, "it was signed under another id", order)
        known = self.remembered.get(name)
        if known:
            return Call(outcome=known.outcome)
        return self._new(name, order, clock)

    def on_done(self, name: str, outcome: Outcome) -> None:
        """It has been carried out, or has failed."""
        known = self.remembered.get(name)
        if known:
            self.remembered[name] = Remembered(outcome, known.not_after)

    def _new(self, name: str, order: Order, clock: Clock) -> Call:
        if order.not_after - order.at > MAX_COMMAND_LIFETIME:
            return Call(outcome=Outcome.MALFORMED)
        try:
            clock.check(order)
        except OrderRefused as error:
            malformed = error.reason is Reason.MALFORMED
            return Call(outcome=Outcome.MALFORMED if malformed else Outcome.EXPIRED)
        self._forget(clock)
        if len(self.remembered) >= MAX_REMEMBERED:
            return Call(outcome=Outcome.BUSY)
        command = next((one for one in CommandName if one.value == order.name), None)
        self.remembered[name] = Remembered(None if command else Outcome.UNKNOWN, order.not_after)
        return Call(command, None if command else Outcome.UNKNOWN)

    def _forget(self, clock: Clock) -> None:
        over = [name for name, one in self.remembered.items() if clock.has_passed(one.not_after)]
        for name in over:
            del self.remembered[name]
