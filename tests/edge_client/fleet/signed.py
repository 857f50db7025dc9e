"""Documents for tests without libsodium: signed by a keyed hash of Ed25519's size."""

import hashlib
from typing import Any

from edge_client.fleet.document import Document, Sign, Verify, seal

NOW = 1_800_000_000.0
"""Seconds since 1970, in 2027."""

DAY = 86400.0


def sign(key: bytes = b"fleet") -> Sign:
    return lambda message: hashlib.sha512(key + message).digest()


def verify(key: bytes = b"fleet") -> Verify:
    return lambda message, signature: sign(key)(message) == signature


def document(version: int, key: bytes = b"fleet", **changes: Any) -> bytes:
    """A signed document."""
    fields: dict[str, Any] = {
        "tenant": "acme",
        "expires_at": NOW + DAY,
        "settings": {"draft.policy": "tree"},
    } | changes
    return seal(Document(version=version, **fields), sign(key))
