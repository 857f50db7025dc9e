"""Verifiers that offer themselves over the broker, and which of them a device may use.

A prompt goes where an offer points to, so an offer counts only if a key made for verifiers (or the fleet's)
signed it, or if its endpoint matches a pattern that the device's owner wrote down. A hostile broker can hide
verifiers, and send a device to one that the owner allowed; it cannot send one to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edge_client.core.fleet.orders import (
    ALL,
    Addressee,
    Clock,
    OrderKind,
    OrderRefused,
    Reason,
    Verify,
    unseal,
)
from edge_client.core.fleet.payloads import State, VerifierStatus
from edge_client.core.fleet.record import SchemaError, decode

MAX_VERIFIERS = 256
"""Names whose epochs are remembered, gone or not; a broker cannot make it more."""

MAX_AGE = 3600.0
"""Seconds after which an unsigned offer is stale; a signed one says itself how long it holds."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A verifier that may be used."""

    name: str
    status: VerifierStatus
    signed: bool
    not_after: float

    @property
    def endpoint(self) -> str:
        """HOST:PORT."""
        return self.status.endpoint or ""


class Discovery:
    """`allowed` are patterns of endpoints as in a shell: "*.gpu.example:50051"."""

    def __init__(self, tenant: str, verify: Verify, allowed: Sequence[str] = ()) -> None:
        self._whom = Addressee(OrderKind.VERIFIER, tenant, ALL)
        self._verify, self._allowed = verify, tuple(allowed)
        self._offers = dict[str, Offer]()
        self._epochs = dict[str, int]()

    @property
    def offers(self) -> tuple[Offer, ...]:
        """By name."""
        return tuple(offer for _, offer in sorted(self._offers.items()))

    def on_payload(self, name: str, payload: bytes, clock: Clock) -> bool:
        """The verifier's topic says this; whether `offers` changed. Raises `OrderRefused`."""
        if not payload:
            return self._offers.pop(name, None) is not None
        offer = self._read(name, payload, clock)
        if offer.status.epoch < self._epochs.get(name, 0):
            return False  # a late will, or an old offer played again
        if offer.status.state is State.OFFLINE:
            return self._offers.pop(name, None) is not None
        self._check(offer, clock)
        before = self._offers.get(name)
        if before and before.signed and not offer.signed:
            return False
        self._offers[name], self._epochs[name] = offer, offer.status.epoch
        return before is None or before.status != offer.status

    def expire(self, clock: Clock) -> bool:
        """Drop what has run out; whether anything had."""
        over = [name for name, offer in self._offers.items() if clock.has_passed(offer.not_after)]
        for name in over:
            del self._offers[name]
        return bool(over)

    def _read(self, name: str, payload: bytes, clock: Clock) -> Offer:
        try:
            status = decode(VerifierStatus, payload)
            return Offer(name, status, False, status.at + MAX_AGE)
        except SchemaError:
            order = unseal(payload, self._verify)
        self._whom.check(order)
        if order.id != name or not order.status:
            raise OrderRefused(Reason.ELSEWHERE, "the offer was signed for another verifier", order)
        if order.status[0].state is State.ONLINE:
            clock.check(order)
        return Offer(name, order.status[0], True, order.not_after)

    def _check(self, offer: Offer, clock: Clock) -> None:
        if not offer.endpoint:
            raise OrderRefused(Reason.MALFORMED, "the offer has no endpoint")
        if not offer.signed and not any(fnmatchcase(offer.endpoint, one) for one in self._allowed):
            raise OrderRefused(
                Reason.UNSIGNED,
                "no key that this device trusts signed the offer, and the owner allows no such endpoint",
            )
        if clock.has_passed(offer.not_after):
            raise OrderRefused(Reason.EXPIRED, "the offer is stale")
        if offer.name not in self._epochs and len(self._epochs) >= MAX_VERIFIERS:
            raise OrderRefused(Reason.MALFORMED, f"{MAX_VERIFIERS} verifiers have been offered already")
