"""Messages between a device and its operator (docs/fleet.md): topics, payloads and the signed document.

Payloads are strict JSON. Reports hold numbers and labels without spaces, so no user's text fits. Errors never
quote values.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from common.errors import PeerError

LABEL = re.compile(r"[A-Za-z0-9#][A-Za-z0-9._:#+-]{0,63}")
"""Pattern of a model, verifier or version: no spaces, so no sentence fits."""

LARGEST = 2**53 - 1
"""The largest whole number: beyond it, JSON readers of other languages round."""

MAX_PAYLOAD = 8192
"""Bytes of a message; longer ones are not parsed."""

DOMAIN = b"forerun fleet document v1\n"
"""Precedes the signed text, so that a signature made for another program is invalid here."""

TOLERANCE = 300.0
"""Seconds that two clocks may differ before a document counts as expired (as in Kerberos, RFC 4120)."""

Sign = Callable[[bytes], bytes]
"""Message -> signature of 64 bytes, by Ed25519 (`edge_client.fleet.keys`)."""

Verify = Callable[[bytes, bytes], bool]
"""(message, signature) -> whether the fleet's key made the signature."""


class PayloadError(PeerError):
    """Raised for a payload that breaks the schema or is not believed."""


def topic(tenant: str, device: str, leaf: str) -> str:
    """Return a topic of a device, such as `status`. `FleetSection` checks the names."""
    return f"forerun/v1/{tenant}/{device}/{leaf}"


def desired_topic(tenant: str) -> str:
    """Return the document's topic, shared by every device of the tenant."""
    return topic(tenant, "fleet", "desired")


class Kill(Enum):
    """Names what an operator stops on all devices at once."""

    NONE = "none"
    DRAFT_OFF = "draft_off"  # no draft steps: ordinary streaming from the verifier
    REMOTE_OFF = "remote_off"  # no verifier is asked: the device alone, or nothing
    HALT = "halt"  # no generations


# Reports ----------------------------------------------------------------------------------------------------


def report(labels: Mapping[str, str], figures: Mapping[str, float | None]) -> bytes:
    """Return facts about a device as JSON, without empty labels and figures that are no numbers. A text that
    does not read as a label leaves as its hash: no sentence leaves, and equal texts stay equal."""
    facts: dict[str, Any] = {name: _label(text) for name, text in labels.items() if text}
    facts |= {name: value for name, value in figures.items() if _is_number(value)}
    return json.dumps(facts, separators=(",", ":")).encode()


def read_report(payload: bytes) -> tuple[dict[str, str], dict[str, float]]:
    """Return the labels and the figures of a report. Strangers may publish one: anything else in it, such as
    a text with control characters, is left out. Raise `PayloadError`."""
    entries = parse(payload).items()
    labels = {name: text for name, text in entries if isinstance(text, str) and LABEL.fullmatch(text)}
    return labels, {name: value for name, value in entries if _is_number(value)}


def _label(text: str) -> str:
    if LABEL.fullmatch(text):
        return text
    return "#" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST  # and not NaN


def parse(payload: bytes, limit: int = MAX_PAYLOAD) -> dict[str, Any]:
    """Parse a JSON object of at most `limit` bytes with unique keys. Raise `PayloadError`."""
    if len(payload) > limit:
        raise PayloadError(f"the payload has {len(payload)} bytes; at most {limit} are allowed")
    try:
        value = json.loads(payload.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):  # JSON's errors and UTF-8's; lists in lists in lists
        raise PayloadError("the payload is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise PayloadError("the payload is not a JSON object")
    return value


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError
    return entries


# The document -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Document:
    """Holds an operator's settings for every device of a tenant. A newer version replaces all of it.

    Raises `PayloadError` for a value of a wrong type.
    """

    tenant: str
    version: int
    expires_at: float  # seconds since 1970
    kill: Kill = Kill.NONE
    settings: Mapping[str, Any] = field(default_factory=dict)  # by name, as `draft.policy`

    def __post_init__(self) -> None:
        holds = (
            type(self.tenant) is str
            and type(self.version) is int
            and 0 <= self.version <= LARGEST
            and _is_number(self.expires_at)
            and type(self.settings) is dict
            and all(isinstance(each, str | bool) or _is_number(each) for each in self.settings.values())
        )
        if not holds:
            raise PayloadError("a value of the document has a wrong type or is out of bounds")

    def has_expired(self, wall: float) -> bool:
        """Return whether the document has expired by this device's clock."""
        return wall > self.expires_at + TOLERANCE


def seal(document: Document, sign: Sign) -> bytes:
    """Return the signed payload. Raise `PayloadError` for a document that every device would reject."""
    text = json.dumps({**asdict(document), "kill": document.kill.value}, separators=(",", ":"))
    signature = sign(DOMAIN + text.encode()).hex()
    payload = json.dumps({"document": text, "signature": signature}, separators=(",", ":")).encode()
    unseal(payload, lambda message, signature: True)
    return payload


def unseal(payload: bytes, verify: Verify) -> Document:
    """Return the document of a signed payload; the signature covers its very bytes, in whatever JSON style.

    Raise `PayloadError`.
    """
    envelope = parse(payload)
    try:
        text, signature = envelope.pop("document").encode(), bytes.fromhex(envelope.pop("signature"))
        if envelope:
            raise ValueError
    except (KeyError, AttributeError, TypeError, ValueError):
        raise PayloadError("the payload is not a document and its signature alone") from None
    if not verify(DOMAIN + text, signature):
        raise PayloadError("its signature matches no key that this device trusts")
    document = parse(text)
    try:
        return Document(**{**document, "kill": Kill(document.get("kill", "none"))})
    except (TypeError, ValueError):
        raise PayloadError("the document lacks a key, or has one that this version does not know") from None
