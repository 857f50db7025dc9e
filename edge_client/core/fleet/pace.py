"""When to speak: reconnects, telemetry and events, none of which may come from all devices at one moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from edge_client.core.fleet.payloads import Event, EventKind

STEADY_TIME = 60.0
"""Seconds of connection after which the next loss counts as the first: a broker that lets in and throws out
at once is none that came back."""

EVENT_EXPIRY = 3600.0
"""Seconds that an event is worth telling."""

MAX_EVENTS = 64

QUIET_TIME = 60.0
"""Seconds between two events of a kind that strangers can cause."""

CAUSED_BY_STRANGERS = frozenset(
    {
        EventKind.ORDER_REFUSED,
        EventKind.TAKEN_OVER,
        EventKind.FLOODED,
        EventKind.PUBLISH_DENIED,
        EventKind.CLOCK_WRONG,
    }
)


class Backoff:
    """Waits that double up to `most` seconds, each drawn from its upper half, "equal jitter"."""

    def __init__(self, first: float = 1.0, most: float = 120.0) -> None:
        self.first, self.most = first, most
        self._failures = 0

    def on_lost(self, connected_time: float) -> None:
        """A connection that lasted so long is over; 0 if there was none."""
        self._failures = 1 if connected_time >= STEADY_TIME else self._failures + 1

    def wait(self, chance: float, hard: bool = False) -> float:
        """Seconds to the next attempt, for a `chance` in [0, 1). `hard`: not before half of `most`."""
        doublings = min(max(self._failures - 1, 0), 30)
        whole = self.most if hard else min(self.most, self.first * 2**doublings)
        return whole * (0.5 + 0.5 * chance)


class Beat:
    """Every `interval` seconds, from a phase that `chance` in [0, 1) decides: a fleet that starts together
    does not speak together."""

    def __init__(self, interval: float, now: float, chance: float) -> None:
        self.interval = interval
        self.due_at = now + interval * chance

    def on_due(self, now: float) -> None:
        """It has been told. Beats that were missed, in a sleep for example, are not made up for."""
        missed = max(0.0, now - self.due_at) // self.interval
        self.due_at += self.interval * (missed + 1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that has not left."""

    event: Event
    queued_at: float


class EventQueue:
    """Events until they have left: the oldest gives way, the next one tells how many did. Monotonic time."""

    def __init__(self) -> None:
        self._waiting = deque[Waiting]()
        self._quiet_until = dict[EventKind, float]()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Event, now: float) -> None:
        """One happened."""
        if event.kind in CAUSED_BY_STRANGERS:
            if now < self._quiet_until.get(event.kind, now):
                return
            self._quiet_until[event.kind] = now + QUIET_TIME
        if len(self._waiting) >= MAX_EVENTS:
            self._drop()
        self._waiting.append(Waiting(event, now))

    def take(self, now: float) -> tuple[Event, float] | None:
        """The oldest that is still worth telling, with how many were dropped before it, and the seconds that
        it is worth yet. It stays until `on_told`."""
        while self._waiting and now - self._waiting[0].queued_at >= EVENT_EXPIRY:
            self._drop()
        if not self._waiting:
            return None
        first = self._waiting[0]

        event = replace(first.event, dropped=self.dropped)
        return event, EVENT_EXPIRY - (now - first.queued_at)

    def on_told(self, dropped: int) -> None:
        """The oldest has left, or never will; so many drops were told with it."""
        self._waiting.popleft()
        self.dropped -= dropped

    def _drop(self) -> None:
        self._waiting.popleft()
        self.dropped += 1
