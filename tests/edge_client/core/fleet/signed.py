"""Signatures for tests of the pure floor: a keyed hash, of Ed25519's size."""

from __future__ import annotations

import hashlib
from typing import Any

from edge_client.core.fleet.orders import Order, OrderKind, Sign, Verify, seal
from edge_client.core.fleet.payloads import Kill

NOW = 1_800_000_000.0
"""Seconds since 1970, in 2027: a clock that was set."""

DAY = 86400.0


def sign(key: bytes = b"fleet") -> Sign:
    return lambda message: hashlib.sha512(key + message).digest()


def verify(*keys: bytes) -> Verify:
    return lambda message, signature: any(sign(key)(message) == signature for key in keys or (b"fleet",))


def config(rev: int, device: str = "pi-1", key: bytes = b"fleet", **changes: Any) -> bytes:
    """A signed configuration."""
    fields: dict[str, Any] = {
        "kind": OrderKind.CONFIG,
        "tenant": "acme",
        "at": NOW,
        "not_after": NOW + DAY,
        "values": {"draft.depth": 4},
    }
    return seal(Order(**(fields | changes | {"rev": rev, "device": device})), sign(key))


def kill(rev: int, mode: Kill, **changes: Any) -> bytes:
    """A signed kill switch."""
    return config(rev, "*", kind=OrderKind.KILL, mode=mode, values=None, **changes)


def command(command_id: str, name: str = "ping", **changes: Any) -> bytes:
    """A signed command."""
    more: dict[str, Any] = {"not_after": NOW + 600, "kind": OrderKind.COMMAND, "values": None} | changes
    return config(1, id=command_id, name=name, **more)
