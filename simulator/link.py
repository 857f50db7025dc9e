"""One direction of a session's connection as TCP shows it: late, in order, never lost.

A message waits for the bottleneck (`bandwidth`), travels (`rtt` / 2 and jitter) and, where one of its packets
is lost, is held back for the retransmission, and all later messages with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from common.errors import UserError
from simulator.draws import Draws, Stream
from simulator.events import Action, Events
from simulator.traces import Trace

PACKET = 1400  # bytes of a message per packet, less than a usual MTU by IP, TCP and TLS headers
FIRST_RTO = 0.2  # seconds; the least that Linux waits (RFC 6298 says 1 s)
MAX_RETRIES = 12  # of one message, each twice as patient as the one before


@dataclass(frozen=True, slots=True)
class Outage:
    """Nothing passes from `start` on, for `duration`; seconds of the world."""

    start: float
    duration: float

    def __post_init__(self) -> None:
        if not (self.start >= 0 and self.duration > 0 and math.isfinite(self.start + self.duration)):
            raise UserError(
                f"outage from {self.start} s for {self.duration} s: give a start of 0 or more and a duration "
                "above 0"
            )

    def covers(self, when: float) -> bool:
        return self.start <= when < self.start + self.duration


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A path between device and verifier, the same both ways unless said otherwise. Times in seconds.

    `jitter` is the standard deviation of the one-way delay, drawn anew as time passes: two draws `t` seconds
    apart have the correlation exp(-t / jitter_memory).
    """

    rtt: float = 0.060
    jitter: float = 0.0
    jitter_memory: float = 0.0  # seconds; 0 = each message by itself
    loss: float = 0.0  # chance that a packet is lost
    bandwidth_up: float = 0.0  # bytes per second; 0 = unlimited
    bandwidth_down: float = 0.0
    outages: tuple[Outage, ...] = ()
    trace: Trace | None = None  # measured round trips, losses and widths in place of `rtt` and the rest

    def __post_init__(self) -> None:
        for name in ("rtt", "jitter", "jitter_memory", "bandwidth_up", "bandwidth_down"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"link {name} is {value}; it must be finite and 0 or more")
        if not 0 <= self.loss < 1:
            raise UserError(f"link loss is {self.loss}; a chance below 1 is needed, or nothing ever arrives")

    def rtt_at(self, when: float) -> float:
        """Seconds, jitter apart."""
        return self.rtt if self.trace is None else self.trace.rtts[self.trace.row(when)]

    def is_lossy_at(self, when: float) -> bool:
        """Whether a measured probe was lost then."""
        trace = self.trace
        return trace is not None and bool(trace.losses) and trace.losses[trace.row(when)]


@dataclass(frozen=True, slots=True)
class Direction:
    """Which of a world's draws and limits a lane takes."""

    delay: Stream
    loss: Stream
    bandwidth: Callable[[LinkSpec], float]


UP: Final = Direction(Stream.UPLINK, Stream.LOSS_UP, lambda link: link.bandwidth_up)
DOWN: Final = Direction(Stream.DOWNLINK, Stream.LOSS_DOWN, lambda link: link.bandwidth_down)


class Lane:
    """One direction of one stream."""

    def __init__(self, events: Events, link: LinkSpec, direction: Direction, draws: Draws) -> None:
        self.num_bytes = 0
        self._events, self._link, self._draws = events, link, draws
        self._direction = direction
        self._is_down = direction is DOWN
        self._free_at = 0.0  # when the bottleneck has sent what it was given
        self._arrived_at = 0.0  # of the newest message: none overtakes it
        self._num_messages = self._num_packets = 0
        self._swing = self._swing_at = 0.0  # jitter in standard deviations, and when it was drawn
        limited = direction.bandwidth(link) or link.jitter or link.loss or link.outages
        self._is_plain = not limited and link.trace is None

    def carry(self, size: int, deliver: Action) -> None:
        """`deliver` when the last of `size` bytes has arrived."""
        self.num_bytes += size
        now, link = self._events.now, self._link
        if self._is_plain:
            self._events.at(now + 0.5 * link.rtt, deliver)
            return
        sent_at = now
        bandwidth = self._bandwidth(now)
        if bandwidth:
            sent_at = self._free_at = max(now, self._free_at) + size / bandwidth
        arrival = self._retransmitted(sent_at, size) + self._delay()
        self._arrived_at = max(arrival, self._arrived_at)
        self._events.at(self._arrived_at, deliver)

    def _bandwidth(self, now: float) -> float:
        """Bytes per second; 0 = unlimited. A trace's width is that of the way down."""
        trace = self._link.trace
        if self._is_down and trace is not None and trace.bandwidths:
            return trace.bandwidths[trace.row(now)]
        return self._direction.bandwidth(self._link)

    def _delay(self) -> float:
        """One way, seconds. Never negative."""
        link = self._link
        base = 0.5 * link.rtt_at(self._events.now)
        if not link.jitter:
            return base
        fresh = self._draws.normal(self._direction.delay, self._num_messages)
        age = self._events.now - self._swing_at
        kept = math.exp(-age / link.jitter_memory) if link.jitter_memory and self._num_messages else 0.0
        self._swing = kept * self._swing + math.sqrt(1.0 - kept * kept) * fresh
        self._swing_at = self._events.now
        self._num_messages += 1
        return max(0.0, base + link.jitter * self._swing)

    def _retransmitted(self, when: float, size: int) -> float:
        """When every packet of the message has left for good.

        A lost packet of a sparse stream is found by the tail loss probe, two round trips later (RFC 8985,
        7.2); a lost probe by the retransmission timer, which doubles.
        """
        link = self._link
        if not (link.loss or link.outages or link.trace is not None):
            return when
        last = when
        for _ in range(-(-size // PACKET)):
            attempt, wait = when, max(2.0 * link.rtt_at(when), 0.01)
            for _ in range(MAX_RETRIES):
                if not self._is_lost(attempt):
                    break
                attempt += wait
                wait = max(FIRST_RTO, 2.0 * wait)
            last = max(last, attempt)
        return last

    def _is_lost(self, when: float) -> bool:
        self._num_packets += 1
        if self._link.is_lossy_at(when) or any(outage.covers(when) for outage in self._link.outages):
            return True
        draw = self._draws.uniform(self._direction.loss, self._num_packets)
        return draw < self._link.loss
