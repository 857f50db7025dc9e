"""What a device must not forget over a restart, as the JSON of its state file.

{"format": "forerun fleet state", "version": 1, "epoch": 12, "signed_at": 1795000000.0,
 "revs": {"fleet": 3, "device": 0, "kill": 2}, "held": {"fleet": "{\\"order\\": ..."},
 "commands": {"a1": ["done", 1795000600.0]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_client.core.fleet.commands import MAX_REMEMBERED, Remembered
from edge_client.core.fleet.payloads import Outcome
from edge_client.core.fleet.record import LARGEST, SchemaError, parse, to_bytes
from edge_client.core.fleet.standing import Stream

FORMAT, VERSION = "forerun fleet state", 1
MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """`held` are signed payloads as they came."""

    epoch: int = 0
    signed_at: float = 0.0
    revs: Mapping[Stream, int] = field(default_factory=dict)
    held: Mapping[Stream, bytes] = field(default_factory=dict)
    commands: Mapping[str, Remembered] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return to_bytes(
            {
                "format": FORMAT,
                "version": VERSION,
                "epoch": self.epoch,
                "signed_at": self.signed_at,
                "revs": {stream.value: rev for stream, rev in self.revs.items()},
                "held": {stream.value: payload.decode() for stream, payload in self.held.items()},
                "commands": {
                    name: [one.outcome.value if one.outcome else None, one.not_after]
                    for name, one in self.commands.items()
                },
            }
        )

    @classmethod
    def from_bytes(cls, payload: bytes) -> Memory:
        """Raises `SchemaError`."""
        found = parse(payload, MAX_SIZE)
        if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            raise SchemaError(f"it is no {FORMAT!r} of version {VERSION}")
        try:
            return cls(
                _whole(found["epoch"]),
                float(found["signed_at"]),
                {Stream(name): _whole(rev) for name, rev in found["revs"].items()},
                {Stream(name): payload.encode() for name, payload in found["held"].items()},
                {name: _remembered(*one) for name, one in list(found["commands"].items())[:MAX_REMEMBERED]},
            )
        except (KeyError, ValueError, TypeError, AttributeError):
            raise SchemaError("it lacks what a state file has") from None


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError
    return value


def _remembered(outcome: str | None, not_after: float) -> Remembered:
    return Remembered(None if outcome is None else Outcome(outcome), float(not_after))
