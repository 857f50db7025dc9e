"""Simulates one direction of a session's connection as TCP shows it: late, in order, never lost.

A message waits for the bottleneck (`bandwidth`, or a `Schedule` of delivery opportunities), travels (half of
`rtt`, and jitter) and, where one of its packets is lost, is held back for the retransmission, and all later
messages with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from common.errors import UserError
from simulator.events import Action, Draws, DrawStream, EventHeap
from simulator.link_spec import JITTER_LAWS, Cursor, Handovers, LinkSpec, Schedule

PACKET = 1400  # bytes of a message per packet, less than a usual MTU by IP, TCP and TLS headers
RTO_MARGIN = 0.2  # seconds beyond the round trip, the least in Linux (RFC 6298 says 1 s in all)
MAX_RTO = 120.0  # seconds; Linux's, too
MAX_TRIES = 15  # of one packet: then Linux gives up the connection (tcp_retries2)
MAX_OBSTACLES = 100_000  # met one right after the other; a link that has more of them lets nothing pass
MICROSECOND = 1e-6


class _Path:
    """One session's handovers. Which interval it begins in the midst of is drawn, too."""

    def __init__(self, handovers: Handovers, draws: Draws) -> None:
        self._handovers, self._draws = handovers, draws
        self._begun = draws.uniform(DrawStream.HANDOVER, 0) * handovers.every  # before the world began

    def is_moving(self, when: float) -> bool:
        """Return whether a handover lets nothing pass at that time."""
        number, since = divmod(when + self._begun, self._handovers.every)
        return number >= 1 and since < self._handovers.duration

    def passes_at(self, when: float) -> float:
        """Return the first moment from `when` on that is in no handover."""
        if not self.is_moving(when):
            return when
        return when + self._handovers.duration - (when + self._begun) % self._handovers.every

    def rtt_change(self, when: float) -> float:
        """Return the seconds by which the round trip differs from the link's."""
        number = int((when + self._begun) // self._handovers.every)
        return self._handovers.rtt_step * (2.0 * self._draws.uniform(DrawStream.HANDOVER, number + 1) - 1.0)


@dataclass(frozen=True, slots=True)
class Direction:
    """Names the direction whose draws and limits a lane takes."""

    way: str  # as in `LinkSpec.bandwidth_up`
    delay: DrawStream
    loss: DrawStream


UP: Final = Direction("up", DrawStream.UPLINK, DrawStream.LOSS_UP)
DOWN: Final = Direction("down", DrawStream.DOWNLINK, DrawStream.LOSS_DOWN)


class VirtualLane:
    """Simulates one direction of one stream."""

    def __init__(self, events: EventHeap, link: LinkSpec, direction: Direction, draws: Draws) -> None:
        self.num_bytes = 0
        self._events, self._link, self._draws = events, link, draws
        self._direction = direction
        self._free_at = 0.0  # when the bottleneck has sent what it was given
        self._arrived_at = 0.0  # of the newest message: none overtakes it
        self._num_messages = self._num_packets = 0
        self._swing = self._swing_at = 0.0  # jitter in standard deviations, and when it was drawn
        schedule: Schedule | None = getattr(link, f"schedule_{direction.way}")
        self._cursor = None if schedule is None else Cursor(schedule)
        self._path = None if link.handovers is None else _Path(link.handovers, draws)
        self._width: float = getattr(link, f"bandwidth_{direction.way}")
        self._rows = link.traced_widths if direction is DOWN else None  # whose widths narrow this lane
        limited = self._width or link.jitter or link.loss or link.outages
        varying = (link.trace, link.handovers, schedule)
        self._is_plain = not limited and all(each is None for each in varying)
        is_probed = link.trace is not None and bool(link.trace.losses)  # a trace without losses loses nothing
        self._loses = bool(link.loss or link.outages or is_probed or self._path is not None)

    def carry(self, size: int, deliver: Action) -> None:
        """Call `deliver` when the last of `size` bytes has arrived."""
        self.num_bytes += size
        now, link = self._events.now, self._link
        if self._is_plain:
            self._events.at(now + 0.5 * link.rtt, deliver)
            return
        arrival = self._retransmitted(self._drained_at(now, size), size) + self._delay()
        self._arrived_at = max(arrival, self._arrived_at)
        self._events.at(self._arrived_at, deliver)

    def _drained_at(self, now: float, size: int) -> float:
        """When the bottleneck has sent the last byte. A trace's widths are those of the way down."""
        if self._cursor is not None:
            return self._cursor.take(now, size)
        begun = max(now, self._free_at)
        if self._rows is not None:
            self._free_at = self._rows.drained_at(begun, size)
        elif self._width:
            self._free_at = begun + size / self._width
        else:
            return now
        return self._free_at

    def _rtt_at(self, when: float) -> float:
        """Seconds, jitter apart. Never negative."""
        rtt = self._link.rtt_at(when)
        return rtt if self._path is None else max(0.0, rtt + self._path.rtt_change(when))

    def _delay(self) -> float:
        """Return the delay of one way in seconds, which is never negative."""
        link = self._link
        base = 0.5 * self._rtt_at(self._events.now)
        if not link.jitter:
            return base
        fresh = self._draws.normal(self._direction.delay, self._num_messages)
        age = self._events.now - self._swing_at
        kept = math.exp(-age / link.jitter_memory) if link.jitter_memory and self._num_messages else 0.0
        self._swing = kept * self._swing + math.sqrt(1.0 - kept * kept) * fresh
        self._swing_at = self._events.now
        self._num_messages += 1
        return max(0.0, base + link.jitter * JITTER_LAWS[link.jitter_law](self._swing))

    def _retransmitted(self, when: float, size: int) -> float:
        """When every packet of the message has left for good.

        A lost packet of a sparse stream is found by the tail loss probe, two round trips later (RFC 8985,
        7.2); a lost probe by the retransmission timer, which is set anew then (7.3) and doubles.
        """
        if not self._loses:
            return when
        last = when
        for _ in range(-(-size // PACKET)):
            if self._is_lost(when):
                last = max(last, self._resent_at(when))
        return last

    def _resent_at(self, lost_at: float) -> float:
        """When a packet that was lost leaves for good.

        A connection that was given up is set up anew as soon as anything passes. So waiting ends, even if all
        tries meet lost probes of a trace that begins again in time with them.
        """
        rtt = self._rtt_at(lost_at)
        attempt, wait = lost_at + max(2.0 * rtt, 0.01), rtt + RTO_MARGIN
        for _ in range(MAX_TRIES):
            if not self._is_lost(attempt):
                return attempt
            attempt += min(wait, MAX_RTO)
            wait *= 2.0
        return self._passes_at(attempt)

    def _passes_at(self, when: float) -> float:
        """Return the first moment from `when` on that no outage, handover or lossy row covers."""
        for _ in range(MAX_OBSTACLES):
            if not self._is_blocked(when):
                return when
            when = self._block_end(when) + MICROSECOND  # as rounding may put an end just before itself
        raise UserError(
            f"nothing passes the link any more up to {when:g} s: its handovers, outages and lost probes take "
            "turns without a gap"
        )

    def _block_end(self, when: float) -> float:
        """When the longest of all that lets nothing pass at `when` is over."""
        ends = [each.start + each.duration for each in self._link.outages if each.covers(when)]
        if self._link.trace is not None:
            ends.append(self._link.trace.passes_at(when))
        if self._path is not None:
            ends.append(self._path.passes_at(when))
        return max(ends)

    def _is_blocked(self, when: float) -> bool:
        """Tell whether nothing passes then, whatever is drawn."""
        if self._link.is_lossy_at(when) or any(outage.covers(when) for outage in self._link.outages):
            return True
        return self._path is not None and self._path.is_moving(when)

    def _is_lost(self, when: float) -> bool:
        self._num_packets += 1
        if self._is_blocked(when):
            return True
        if not self._link.loss:
            return False
        draw = self._draws.uniform(self._direction.loss, self._num_packets)
        return draw < self._link.loss
