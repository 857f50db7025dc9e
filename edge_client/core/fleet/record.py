"""Records: frozen dataclasses whose fields carry a rule, and their strict JSON.

What leaves a device is an allow-list, so a record has numbers, enumerations and checked names, and nothing
else. The rules hold on both ways: what comes is refused with its first unknown key or wrong value, and what
is about to leave is read back by the same rules first. Messages name keys and what was expected, never a
value: values may be a stranger's, or a secret that came by mistake.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any, Self, TypeVar

from common.errors import PeerError
from edge_client.core.fleet.names import NAME

LARGEST = 2**53 - 1
"""Of whole numbers: beyond it, JSON readers of other languages round."""

MAX_PAYLOAD = 8192
"""Bytes of a message that is looked at at all."""

KEY = re.compile(r"[a-z][a-z0-9_]{0,31}(\.[a-z][a-z0-9_]{0,31}){0,3}")
"""A setting's name: daemon.listen, draft.threads."""


R = TypeVar("R", bound="Record")


class SchemaError(PeerError):
    """A payload that breaks the schema, or a record that must not leave."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field may hold. `read` turns JSON into the value or raises `ValueError`; `write` undoes it."""

    expected: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value

    def field(self, default: Any) -> Any:
        """A dataclass field under this rule; None as default allows it to be left out."""
        return field(default=default, metadata={"rule": self})


def _need(holds: bool) -> None:
    if not holds:
        raise ValueError


def whole(default: Any = MISSING, *, least: int = 0, most: int = LARGEST) -> Any:
    """A whole number from `least` to `most`."""

    def read(value: Any) -> int:
        _need(type(value) is int and least <= value <= most)
        return int(value)

    return Rule(f"a whole number from {least} to {most}", read).field(default)


def number(default: Any = MISSING, *, least: float = 0.0, most: float = 1e12) -> Any:
    """A finite number from `least` to `most`."""

    def read(value: Any) -> float:
        _need(type(value) in (int, float) and math.isfinite(value) and least <= value <= most)
        return float(value)

    return Rule(f"a number from {least:g} to {most:g}", read, _short).field(default)


def flag(default: Any = MISSING) -> Any:
    """True or false."""

    def read(value: Any) -> bool:
        _need(type(value) is bool)
        return bool(value)

    return Rule("true or false", read).field(default)


def member(kind: type[Enum], default: Any = MISSING) -> Any:
    """One of an enumeration's values."""
    return Rule(
        f"one of {', '.join(str(one.value) for one in kind)}", kind, lambda value: kind(value).value
    ).field(default)


def matches(pattern: re.Pattern[str], what: str, default: Any = MISSING) -> Any:
    """Text that is all of a pattern: a name, a hash, never a sentence."""

    def read(value: Any) -> str:
        _need(isinstance(value, str) and pattern.fullmatch(value) is not None)
        return str(value)

    return Rule(what, read).field(default)


def name(default: Any = MISSING) -> Any:
    """A name as in topics."""
    return matches(NAME, "a name of 1 to 64 letters, digits, dots, dashes and underscores", default)


def records(kind: type[Record], default: Any = MISSING, *, most: int) -> Any:
    """A list of at most `most` records."""

    def read(value: Any) -> tuple[Record, ...]:
        _need(isinstance(value, list) and len(value) <= most)
        return tuple(kind.from_json(one) for one in value)

    rule = Rule(f"a list of at most {most}", read, lambda value: [one.as_json() for one in value])
    return rule.field(default)


def settings(default: Any = MISSING, *, most: int = 64, longest: int = 256) -> Any:
    """A table of settings: each a boolean, a finite number, or text of at most `longest` bytes."""

    def scalar(value: Any) -> bool:
        if isinstance(value, str):
            return len(value.encode()) <= longest  # half a surrogate pair is a ValueError
        return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))

    def read(value: Any) -> Mapping[str, Any]:
        _need(isinstance(value, dict) and len(value) <= most)
        _need(all(KEY.fullmatch(key) and scalar(one) for key, one in value.items()))
        return dict(value)

    expected = (
        f"at most {most} settings by name, each true, false, a number or a text of at most {longest} bytes"
    )
    return Rule(expected, read, dict).field(default)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all records share. Subclasses are frozen, keyword-only, and made of the fields above."""

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Raises `SchemaError`."""
        known = {one.name: one for one in fields(cls)}
        if not isinstance(found, dict):
            raise SchemaError(f"{cls.__name__} must be a JSON object")
        for key in found:
            if key not in known:
                raise SchemaError(f"{cls.__name__} has no key {_told(key)}")
        for key, one in known.items():
            if key not in found and one.default is MISSING:
                raise SchemaError(f"{cls.__name__} lacks the key {key}")
        return cls(
            **{key: cls._read(key, known[key].metadata["rule"], value) for key, value in found.items()}
        )

    @classmethod
    def _read(cls, key: str, rule: Rule, value: Any) -> Any:
        try:
            return rule.read(value)
        except (ValueError, TypeError):  # TypeError: an enumeration asked for a list
            raise SchemaError(f"{cls.__name__}: {key} must be {rule.expected}") from None

    def as_json(self) -> dict[str, Any]:
        """Without what is None. Raises `SchemaError` for a value that its rule does not know."""
        found = {one.name: (getattr(self, one.name), one.metadata["rule"]) for one in fields(self)}
        return {
            key: self._write(key, rule, value) for key, (value, rule) in found.items() if value is not None
        }

    def _write(self, key: str, rule: Rule, value: Any) -> Any:
        try:
            return rule.write(value)
        except (ValueError, TypeError, AttributeError):
            raise SchemaError(f"{type(self).__name__}: {key} must be {rule.expected}") from None


def encode(record: Record, limit: int = MAX_PAYLOAD) -> bytes:
    """Its JSON, read back by its own rules before anybody else can. Raises `SchemaError`."""
    payload = to_bytes(record.as_json())
    decode(type(record), payload, limit)
    return payload


def decode(kind: type[R], payload: bytes, limit: int = MAX_PAYLOAD) -> R:
    """Raises `SchemaError`."""
    return kind.from_json(parse(payload, limit))


def to_bytes(found: Any) -> bytes:
    """Compact JSON in ASCII, keys in their order."""
    try:
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError):
        raise SchemaError("a value cannot be written as JSON") from None


def parse(payload: bytes, limit: int = MAX_PAYLOAD) -> Any:
    """JSON of at most `limit` bytes, no key twice, no NaN. Raises `SchemaError`, whatever the bytes are."""
    if len(payload) > limit:
        raise SchemaError(f"the payload has {len(payload)} bytes; {limit} is the most")
    try:
        return json.loads(payload.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):  # JSON's errors and UTF-8's; lists in lists in lists
        raise SchemaError("the payload is not JSON in UTF-8") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    _need(len(found) == len(pairs))
    return found


def _refuse(constant: str) -> Any:
    raise ValueError


def _short(value: Any) -> Any:
    """Six digits are enough for a person and for a plot."""
    return (
        float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) and value < 1e6 else value
    )


def _told(key: str) -> str:
    return key if KEY.fullmatch(key) else "(its name is none that a key can have)"
