"""Describes a connection between device and verifier, drawn at random or replayed from measurements.
`simulator.virtual_lane` carries messages over it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from common.errors import UserError
from simulator.documents import cell_number, csv_reader, read_text


@dataclass(frozen=True, slots=True)
class Outage:
    """Blocks the path from `start` on, for `duration`; seconds of the world."""

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
class Handovers:
    """Moves the path to another satellite or cell every so often. Times in seconds.

    For `duration` nothing passes, then the round trip is another one: after each handover it differs from the
    link's by an amount drawn uniformly from -`rtt_step` to `rtt_step` (it is never below 0). A session has
    moments and amounts of its own, the same in both directions.
    """

    every: float
    duration: float = 0.0
    rtt_step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("every", "duration", "rtt_step"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"handovers {name} is {value}; it must be finite and 0 or more")
        if not self.duration < self.every:
            raise UserError(
                f"handovers last {self.duration} s and come every {self.every} s; they must be shorter"
            )


def _share(swing: float) -> float:
    """Return the share of normal draws that are lower."""
    return 0.5 * math.erfc(-swing * math.sqrt(0.5))


JITTER_LAWS: Final[dict[str, Callable[[float], float]]] = {
    "normal": lambda swing: swing,
    "uniform": lambda swing: math.sqrt(3.0) * (2.0 * _share(swing) - 1.0),
    "exponential": lambda swing: -math.log(max(_share(-swing), 1e-12)),  # of queues: later, never earlier
}
"""From a standard normal draw to a deviation in standard deviations."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Describes a path between device and verifier, the same both ways unless stated. Times in seconds.

    `jitter` is the standard deviation of the one-way delay, drawn anew as time passes from the law named
    `jitter_law`: the normal draws behind two deviations `t` seconds apart have the correlation
    exp(-t / jitter_memory).
    """

    rtt: float = 0.060
    jitter: float = 0.0
    jitter_memory: float = 0.0  # seconds; 0 = each message by itself
    jitter_law: str = "normal"
    loss: float = 0.0  # chance that a packet is lost
    bandwidth_up: float = 0.0  # bytes per second; 0 = unlimited
    bandwidth_down: float = 0.0
    outages: tuple[Outage, ...] = ()
    trace: Trace | None = None  # measured round trips, losses and widths in place of `rtt` and the rest
    handovers: Handovers | None = None
    schedule_up: Schedule | None = None  # delivery opportunities in place of `bandwidth_up`
    schedule_down: Schedule | None = None

    def __post_init__(self) -> None:
        for name in ("rtt", "jitter", "jitter_memory", "bandwidth_up", "bandwidth_down"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"link {name} is {value}; it must be finite and 0 or more")
        if self.jitter_law not in JITTER_LAWS:
            raise UserError(f"link jitter_law is {self.jitter_law!r}; it can be {', '.join(JITTER_LAWS)}")
        if not 0 <= self.loss < 1:
            raise UserError(f"link loss is {self.loss}; a chance below 1 is needed, or nothing ever arrives")
        has_widths = self.bandwidth_up > 0, self.bandwidth_down > 0 or self.traced_widths is not None
        for way, has_width in zip(("up", "down"), has_widths, strict=True):
            if has_width and getattr(self, f"schedule_{way}") is not None:
                raise UserError(
                    f"the link has both a bandwidth and a mahimahi trace on its way {way}; give one of them"
                )

    @property
    def traced_widths(self) -> Trace | None:
        """Return the trace, if it has widths of the way down."""
        return self.trace if self.trace is not None and self.trace.bandwidths else None

    @property
    def has_bottleneck(self) -> bool:
        """Return whether messages wait for each other, which favours senders of few large messages."""
        limits = (self.traced_widths, self.schedule_up, self.schedule_down)
        return bool(self.bandwidth_up or self.bandwidth_down or any(each is not None for each in limits))

    def rtt_at(self, when: float) -> float:
        """Return the round trip in seconds, jitter and handovers apart."""
        return self.rtt if self.trace is None else self.trace.rtts[self.trace.row(when)]

    def is_lossy_at(self, when: float) -> bool:
        """Return whether a measured probe was lost at that time."""
        trace = self.trace
        return trace is not None and bool(trace.losses) and trace.losses[trace.row(when)]


# Measured networks: tables of round trips over time, replayed as they were --------------------------------

MBIT = 125_000.0  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Holds one measured session in columns of equal length; between two rows the earlier one holds.

    A world that outlasts the trace begins it again. `offset` is where in it a world begins, seconds. Raises
    `UserError` if nothing ever passes: waiting messages would then wait for ever.
    """

    name: str
    times: tuple[float, ...]  # seconds from the first row, not falling
    rtts: tuple[float, ...]  # seconds
    losses: tuple[bool, ...] = ()  # whether the probe sent then was lost; empty = never
    bandwidths: tuple[float, ...] = ()  # bytes per second downwards; empty = unlimited
    offset: float = 0.0
    duration: float = field(init=False)
    """Seconds until it begins again: the last row holds as long as rows do on average."""
    num_bytes: float = field(init=False)
    """That pass from one beginning to the next, where it has bandwidths."""

    def __post_init__(self) -> None:
        last = self.times[-1]
        duration = last * len(self.times) / (len(self.times) - 1) if last > 0 else 1.0
        object.__setattr__(self, "duration", duration)
        # Of rows at one moment all but the last hold for no time: they do not count here.
        held = [self._end(row) - begin for row, begin in enumerate(self.times)]
        num_bytes = sum(time * width for time, width in zip(held, self.bandwidths, strict=False))
        object.__setattr__(self, "num_bytes", num_bytes)
        if self.losses and all(lost or not time for time, lost in zip(held, self.losses, strict=True)):
            raise UserError(f"the trace {self.name} loses every probe, so nothing would ever arrive")
        if self.bandwidths and not num_bytes > 0:
            raise UserError(
                f"the trace {self.name} has no bw_mbps above 0, so nothing would ever arrive; without that "
                "column its width is unlimited"
            )

    def above(self, floor: float) -> Trace:
        """Return the same variation over another path: `floor` seconds plus each round trip's excess over the
        5th percentile, as measured round trips often hold a server's time or a detour."""
        usual = sorted(self.rtts)[len(self.rtts) // 20]
        return replace(self, rtts=tuple(floor + max(0.0, rtt - usual) for rtt in self.rtts))

    def row(self, when: float) -> int:
        """Return the index of the row that holds at `when` seconds of the world."""
        return bisect_right(self.times, (when + self.offset) % self.duration) - 1

    def drained_at(self, when: float, size: int) -> float:
        """Return when `size` bytes that begin to drain at `when` are through, each row at its own width."""
        place, row = (when + self.offset) % self.duration, self.row(when)
        rounds = max(0, math.ceil(size / self.num_bytes) - 1)
        when += rounds * self.duration
        left = size - rounds * self.num_bytes
        while True:
            width, lasts = self.bandwidths[row], self._end(row) - place
            if width and left <= width * lasts:
                return when + left / width
            left -= width * lasts
            when += lasts
            row = (row + 1) % len(self.times)
            place = self.times[row]

    def passes_at(self, when: float) -> float:
        """Return the first moment from `when` on whose probe was not lost."""
        place, row = (when + self.offset) % self.duration, self.row(when)
        while self.losses and self.losses[row]:
            when += self._end(row) - place
            row = (row + 1) % len(self.times)
            place = self.times[row]
        return when

    def _end(self, row: int) -> float:
        """When the row ceases to hold, seconds from the first."""
        return self.times[row + 1] if row + 1 < len(self.times) else self.duration


STEP_BACK: Final = 0.5
"""Seconds by which `time_s` may fall below an earlier row's. Clocks of ping logs step back by milliseconds,
and a probe that is stamped when its answer comes may be overtaken. A larger fall means two logs in one
file."""


def read_trace(path: Path, session: str | None = None) -> Trace:
    """Read a CSV with a header and at least `time_s,rtt_ms`; optional `loss` (0 or 1 per probe), `bw_mbps`
    and `session`. Other columns and rows without an `rtt_ms` are ignored, except lost probes.

    `session` picks one session of a file that has several; by default the first. Rows that are up to
    `STEP_BACK` seconds late are sorted by time. Raises `UserError` that names the line, or reports that
    nothing would ever arrive.
    """
    with csv_reader("the trace", path, ("time_s", "rtt_ms")) as reader:
        rows = [_Row(path, reader.line_num, values) for values in reader]
    chosen = _one_session(path, rows, session)
    return _columns(path, [row for row in chosen if row.is_measured])


class _Row:
    """One line, its numbers checked."""

    def __init__(self, path: Path, line: int, values: Mapping[str, str | None]) -> None:
        self.where = f"the trace {path}, line {line}"
        self.session = values.get("session") or ""
        self.time = cell_number(self.where, values, "time_s")
        loss = cell_number(self.where, values, "loss") if values.get("loss") else 0.0
        if loss not in (0.0, 1.0):
            raise UserError(
                f"{self.where}: loss is {values['loss']!r}; a probe is either lost (1) or not (0)"
            )
        self.is_lost = loss == 1.0
        self.is_measured = bool(values.get("rtt_ms")) or self.is_lost
        self.rtt = cell_number(self.where, values, "rtt_ms") * 1e-3 if values.get("rtt_ms") else math.nan
        has_width = bool(values.get("bw_mbps"))
        self.bandwidth = cell_number(self.where, values, "bw_mbps") * MBIT if has_width else math.nan


def _one_session(path: Path, rows: list[_Row], session: str | None) -> list[_Row]:
    names = list(dict.fromkeys(row.session for row in rows))
    if session is not None and session not in names:
        raise UserError(f"the trace {path} has no session {session!r}; it has {', '.join(names[:10])}")
    wanted = session if session is not None else (names[0] if names else "")
    return [row for row in rows if row.session == wanted]


def _columns(path: Path, rows: list[_Row]) -> Trace:
    if not rows:
        raise UserError(f"the trace {path} has no row with an rtt_ms")
    latest = rows[0].time
    for row in rows:
        if row.time < latest - STEP_BACK:
            raise UserError(
                f"{row.where}: time_s falls from {latest:g} to {row.time:g}; rows must be in order of time, "
                f"but for steps back of up to {STEP_BACK:g} s"
            )
        latest = max(latest, row.time)
    rows = sorted(rows, key=lambda row: row.time)
    # Where no row has one all probes are lost, which `Trace` refuses.
    known = next((row.rtt for row in rows if not math.isnan(row.rtt)), math.nan)
    start = rows[0].time
    times, rtts, losses, bandwidths = list[float](), list[float](), list[bool](), list[float]()
    for row in rows:
        known = row.rtt if not math.isnan(row.rtt) else known  # a lost probe tells no round trip
        times.append(row.time - start)
        rtts.append(known)
        losses.append(row.is_lost)
        bandwidths.append(row.bandwidth)
    is_wide = all(math.isnan(width) for width in bandwidths)
    return Trace(
        path.name,
        tuple(times),
        tuple(rtts),
        tuple(losses) if any(losses) else (),
        () if is_wide else _filled(bandwidths),
    )


def _filled(bandwidths: list[float]) -> tuple[float, ...]:
    """Gaps and zeros take the width before them, the first ones that of the first row that has one.

    A zero is no width: where the probe came back something did pass, and phones that log their traffic
    (Raca et al., MMSys 2020) write 0 while they request nothing, beside pings that take their usual time.
    Where the probe was lost so is everything else.
    """
    last = next((width for width in bandwidths if width > 0), 0.0)
    filled = []
    for width in bandwidths:
        last = width if width > 0 else last  # NaN is not above 0
        filled.append(last)
    return tuple(filled)


# Mahimahi's packet-delivery traces: when a link may send, not how wide it is (Netravali et al. 2015).
#
# A text file with one whole number of milliseconds per line, not falling. Each is an opportunity to deliver
# `PACKET` bytes; after the last the file begins again, its last number later. As in mm-link, bytes are what
# is counted: messages that wait together share an opportunity, a long one takes several, and an opportunity
# that finds nothing waiting is lost. IP and TCP headers are not counted.

PACKET: Final = 1504  # bytes per opportunity: an Ethernet MTU and the four bytes that mahimahi's tunnel adds
MS = 1000.0  # in a second


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Holds moments of delivery, ms from the world's beginning; begun again every `times[-1]`."""

    name: str
    times: tuple[int, ...]  # not falling, the last above 0

    def when(self, index: int) -> float:
        """Return the seconds until opportunity `index`, counted through all repetitions."""
        cycle, place = divmod(index, len(self.times))
        return (cycle * self.times[-1] + self.times[place]) / MS

    def first_after(self, now: float) -> int:
        """Return the index of the first opportunity later than `now` seconds."""
        cycle = int(now * MS // self.times[-1])
        index = cycle * len(self.times) + bisect_right(self.times, now * MS - cycle * self.times[-1])
        while index > 0 and self.when(index - 1) > now:  # milliseconds were rounded
            index -= 1
        while self.when(index) <= now:
            index += 1
        return index


class Cursor:
    """Tracks how far one direction of a connection has used up its schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._index = -1  # of the opportunity that the newest message ended in
        self._left = 0  # bytes that it still has

    def take(self, now: float, size: int) -> float:
        """Return when the last of `size` bytes is delivered, seconds; `now` must not fall between calls."""
        if self._index < 0 or self._schedule.when(self._index) <= now:
            self._index, self._left = self._schedule.first_after(now), PACKET
        if size > self._left:
            more = -(-(size - self._left) // PACKET)
            self._index += more
            self._left += more * PACKET
        self._left -= size
        return self._schedule.when(self._index)


def read_schedule(path: Path) -> Schedule:
    """Read a packet-delivery trace. Raises `UserError` that names the line."""
    text = read_text("the mahimahi trace", path, kind="a text file")
    times = list[int]()
    for line, entry in enumerate(text.splitlines(), 1):
        digits = entry.strip()
        if not (digits.isascii() and digits.isdigit()):
            raise UserError(
                f"the mahimahi trace {path}, line {line}: {entry!r} where a whole number of milliseconds, "
                "0 or more, was expected"
            )
        if times and int(digits) < times[-1]:
            raise UserError(
                f"the mahimahi trace {path}, line {line}: time falls from {times[-1]} to {digits} ms; lines "
                "must be in order of time"
            )
        times.append(int(digits))
    if not times or times[-1] == 0:
        raise UserError(f"the mahimahi trace {path} lasts no time; at least one line above 0 ms was expected")
    return Schedule(path.name, tuple(times))
