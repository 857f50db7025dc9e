"""A stream as its client pieced it together, and what must be true of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class Violation(Exception):
    """A text that is not the one without faults, or a stream that is not one stream. Says which and how."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a stream said, without how it was cut into events or who wrote which token."""

    text: str
    num_tokens: int  # by the events' own origins
    tokens: tuple[str, ...]  # where log-probabilities were asked for
    finish: str
    usage: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Reading:
    """All bytes so far; whole events are read as they come."""

    name: str
    data: bytearray = field(default_factory=bytearray)
    events: list[Any] = field(default_factory=list)
    num_texts: int = 0  # events with text in them
    done: bool = False
    num_connections: int = 0
    _read: int = 0  # bytes of whole events
    _last_id: int = 0

    def feed(self, chunk: bytes) -> bool:
        """More bytes; whether text was among them. Raises `Violation` for an event that has no place."""
        self.data += chunk
        before = self.num_texts
        while (end := self.data.find(b"\n\n", self._read)) >= 0:
            frame = bytes(self.data[self._read : end])
            self._read = end + 2
            lines = [line for line in frame.split(b"\n") if not line.startswith(b":")]  # comments
            self._take(b"\n".join(lines))
        return self.num_texts > before

    def _take(self, frame: bytes) -> None:
        if self.done:
            raise Violation(f"{self.name}: {frame[:200]!r} came after the end")
        if frame == b"data: [DONE]":
            self.done = True
            return
        head, _, data = frame.partition(b"\ndata: ")
        self._last_id += 1
        if head != b"id: %d" % self._last_id:
            raise Violation(f"{self.name}: event {self._last_id} was due and {head!r} came")
        event = json.loads(data)
        if "error" in event:
            raise Violation(f"{self.name}: ended with an error: {event['error']}")
        self.events.append(event)
        self.num_texts += bool(text_of(event))

    def told(self) -> Told:
        """What it says. Raises `Violation` if it has not exactly one end."""
        finishes = [
            choice["finish_reason"]
            for event in self.events
            for choice in event["choices"]
            if choice["finish_reason"]
        ]
        usages = [event["usage"] for event in self.events if event.get("usage")]
        if len(finishes) != 1 or len(usages) != 1:
            raise Violation(f"{self.name}: {len(finishes)} ends and {len(usages)} counts of its tokens")
        runs = [run for event in self.events for run in event.get("forerun", {}).get("origins", ())]
        return Told(
            "".join(text_of(event) for event in self.events),
            sum(count for _, _, count in runs),
            tuple(token for event in self.events for token in _tokens(event)),
            finishes[0],
            tuple(sorted(usages[0].items())),
        )


def text_of(event: dict[str, Any]) -> str:
    """The text that an event brings, of either endpoint."""
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        for choice in event["choices"]
    )


def _tokens(event: dict[str, Any]) -> list[str]:
    return [
        entry["token"]
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {}).get("content") or ()
    ]


def compare(reading: Reading, again: bytes, reference: Told) -> None:
    """Raise `Violation` unless the stream, read again from its beginning, is what its client has, and what it
    says is what was said without faults."""
    own = bytes(reading.data)
    if own != again:
        raise Violation(f"{reading.name}: read again from 0 it is another stream; {_first(own, again)}")
    told = reading.told()
    for name in ("text", "num_tokens", "tokens", "finish", "usage"):
        found, expected = getattr(told, name), getattr(reference, name)
        if found != expected:
            where = _first(found, expected) if isinstance(found, str | tuple) else f"{found} != {expected}"
            raise Violation(f"{reading.name}: its {name} is another one than without faults; {where}")


def _first(found: Any, expected: Any) -> str:
    """Where two sequences begin to differ."""
    pairs = enumerate(zip(found, expected, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(found), len(expected)))
    there = slice(max(0, at - 40), at + 80)
    return (
        f"from {at} of {len(found)} and {len(expected)} on: {found[there]!r} in place of {expected[there]!r}"
    )
