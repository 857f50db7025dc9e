"""Signed orders: what an operator wants of a device, and whether a device believes it.

An order travels as {"order": TEXT, "signature": HEX}: what is signed are the very bytes of TEXT, JSON itself,
so no two programs can disagree on how to write it. TEXT names what it is, for which tenant and which device
("*" for all), its revision and how long it holds: a broker that moves it to another topic, or plays an old
one again, gains nothing. Ed25519 comes in as a function, since this floor has the standard library only.
"""

# ruff: noqa: RUF009 (the calls make dataclass fields)

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from common.errors import UserError
from edge_client.core.fleet import record
from edge_client.core.fleet.payloads import FAR, ConfigFault, Fault, Kill, VerifierStatus
from edge_client.core.fleet.record import Record, SchemaError, decode, encode, parse, to_bytes

Verify = Callable[[bytes, bytes], bool]
"""(message, signature of 64 bytes) -> whether a key that this device trusts made it."""

Sign = Callable[[bytes], bytes]
"""Message -> signature of 64 bytes."""

DOMAIN = b"forerun fleet order v1\n"
"""Stands before what is signed: a signature made for another program means nothing here."""

ALL = "*"
"""The device of an order for every device."""

MAX_LIFETIME = 400 * 86400.0
"""Seconds that an order may hold: a year and some days to renew it."""

TOLERANCE = 300.0
"""Seconds that two clocks may differ before an order counts as expired (as in Kerberos, RFC 4120)."""

MAX_FUTURE = 86400.0
"""Seconds that an order may be signed ahead of this device's clock: a wrong time zone, not a wrong year."""

CLOCK_SET = 1767225600.0
"""2026-01-01: a clock before it was never set, as on a board without a battery that has not heard NTP yet."""

SIGNATURE = re.compile(r"[0-9a-f]{128}")

FORBIDDEN = frozenset(
    {
        *("fleet", "broker", "tenant", "telemetry", "privacy"),
        *("key", "keys", "secret", "token", "password", "passphrase", "tls", "ca", "certificate", "user"),
        *("listen", "host", "port", "socket", "cors", "origins"),
        *("endpoint", "verifier", "url"),
        *("path", "file", "dir", "directory", "command", "exec", "script"),
    }
)
"""Words that are in no setting which a fleet may set: what the device trusts, whom it lets in, where prompts
go, what it runs or writes. They are the owner's alone, also against a thief of the fleet's key."""


class OrderKind(Enum):
    """What is signed."""

    CONFIG = "config"
    KILL = "kill"
    COMMAND = "command"
    VERIFIER = "verifier"


@dataclass(frozen=True, kw_only=True)
class Order(Record):
    """The signed text. Which of the last fields it has depends on its kind."""

    kind: OrderKind = record.member(OrderKind)
    tenant: str = record.name()
    device: str = record.matches(re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"), "a device's name, or *")
    rev: int = record.whole(least=1)
    at: float = record.number(most=FAR)  # when it was signed
    not_after: float = record.number(most=FAR)
    values: Mapping[str, Any] | None = record.settings(None)  # of a configuration
    mode: Kill | None = record.member(Kill, None)  # of a kill switch
    id: str | None = record.name(None)  # of a command, or the verifier's
    name: str | None = record.name(None)  # of a command
    status: tuple[VerifierStatus, ...] | None = record.records(VerifierStatus, None, most=1)  # of a verifier


@dataclass(frozen=True, kw_only=True)
class Envelope(Record):
    """An order on the wire."""

    order: str = record.matches(re.compile(r"[ -~]{2,7000}"), "the order's text, in ASCII")
    signature: str = record.matches(SIGNATURE, "128 hexadecimal digits")


class Reason(Enum):
    """Why an order is refused."""

    MALFORMED = "malformed"
    UNSIGNED = "unsigned"
    ELSEWHERE = "elsewhere"
    REPLAYED = "replayed"
    EXPIRED = "expired"
    CLOCK = "clock"
    KEYS = "keys"
    NOT_APPLIED = "not_applied"


class OrderRefused(Exception):
    """`order` is there if the signature was good: only then may an answer be given."""

    def __init__(
        self, reason: Reason, words: str, order: Order | None = None, faults: tuple[ConfigFault, ...] = ()
    ) -> None:
        super().__init__(words)
        self.reason, self.order, self.faults = reason, order, faults


def seal(order: Order, sign: Sign) -> bytes:
    """The payload. Raises `SchemaError` for an order that no device would take."""
    text = to_bytes(decode(Order, encode(order)).as_json())
    envelope = Envelope(order=text.decode(), signature=sign(DOMAIN + text).hex())
    return encode(envelope)


def unseal(payload: bytes, verify: Verify) -> Order:
    """What was signed. Raises `OrderRefused`."""
    try:
        envelope = decode(Envelope, payload)
    except SchemaError as error:
        raise OrderRefused(Reason.MALFORMED, f"no signed order: {error}") from None
    text = envelope.order.encode()
    if not verify(DOMAIN + text, bytes.fromhex(envelope.signature)):
        raise OrderRefused(Reason.UNSIGNED, "its signature is by no key that this device trusts")
    try:
        return Order.from_json(parse(text))
    except SchemaError as error:
        raise OrderRefused(Reason.MALFORMED, f"the signed order cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Addressee:
    """Whom orders of one topic are for."""

    kind: OrderKind
    tenant: str
    device: str  # or ALL

    def check(self, order: Order) -> None:
        """Raises `OrderRefused` for an order that was signed for another topic."""
        if (order.kind, order.tenant, order.device) != (self.kind, self.tenant, self.device):
            raise OrderRefused(
                Reason.ELSEWHERE,
                f"it was signed as {order.kind.value} for device {order.device} of {order.tenant} and came "
                f"to {self.kind.value} of device {self.device} of {self.tenant}: somebody moved it",
                order,
            )


@dataclass(frozen=True, slots=True)
class Clock:
    """This device's wall clock, and the newest signed time that it has seen (both seconds since 1970).

    Time does not run backwards: it is never earlier than when the newest accepted order was signed. A clock
    that was never set is not believed at all; then that signed time is all there is.
    """

    wall: float
    signed_at: float = 0.0

    @property
    def now(self) -> float:
        return max(self.wall, self.signed_at)

    @property
    def is_set(self) -> bool:
        return self.wall >= CLOCK_SET

    def check(self, order: Order) -> None:
        """Raises `OrderRefused` for an order that holds no more, not yet, or for too long."""
        if not 0 < order.not_after - order.at <= MAX_LIFETIME:
            days = MAX_LIFETIME / 86400
            raise OrderRefused(
                Reason.MALFORMED, f"it does not say an end within {days:g} days of its signing", order
            )
        if self.is_set and order.at > self.now + MAX_FUTURE:
            raise OrderRefused(
                Reason.CLOCK,
                f"it was signed {_ago(order.at - self.wall)} ahead of this device's clock; one of the two "
                "clocks is wrong. It is looked at again every minute, so setting this clock is enough",
                order,
            )
        if self.has_passed(order.not_after):
            raise OrderRefused(
                Reason.EXPIRED,
                f"it expired {_ago(self.now - order.not_after)} ago by this device's clock; sign a new one, "
                "or set the clock if it runs ahead",
                order,
            )

    def has_passed(self, not_after: float) -> bool:
        return self.now > not_after + TOLERANCE


def wrong_keys(keys: Iterable[str], allowed: frozenset[str] | None) -> dict[str, Fault]:
    """The keys that a fleet may not set, and why. `allowed` None leaves unknown keys to who applies them."""
    found = dict[str, Fault]()
    for key in keys:
        if FORBIDDEN & {*key.split("."), *re.split(r"[._]", key)}:
            found[key] = Fault.FORBIDDEN_KEY
        elif allowed is not None and key not in allowed:
            found[key] = Fault.UNKNOWN_KEY
    return found


def check_lifetime(seconds: float) -> float:
    """For an operator. Raises `UserError`."""
    if not 0 < seconds <= MAX_LIFETIME:
        raise UserError(f"an order must expire within {MAX_LIFETIME / 86400:g} days; give --expires less")
    return seconds


def hash_of(values: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that tell two configurations apart."""
    return hashlib.sha256(to_bytes(dict(sorted(values.items())))).hexdigest()[:16]


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
