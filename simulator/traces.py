"""Measured networks: tables of round trips over time, replayed as they were."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import UserError
from simulator.documents import cell_number, csv_reader

MBIT = 125_000.0  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One measured session. Columns of equal length; between two rows the earlier one holds.

    A world that outlasts it begins it again. `offset` is where in it a world begins, seconds. Raises
    `UserError` if nothing ever passes it: what waits until something does would wait for ever.
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
        """The same ups and downs over another path: `floor` seconds and what each round trip took beyond the
        5th percentile, as measured round trips often hold a server's time or a detour."""
        usual = sorted(self.rtts)[len(self.rtts) // 20]
        return replace(self, rtts=tuple(floor + max(0.0, rtt - usual) for rtt in self.rtts))

    def row(self, when: float) -> int:
        """Index of the row that holds at `when` seconds of the world."""
        return bisect_right(self.times, (when + self.offset) % self.duration) - 1

    def drained_at(self, when: float, size: int) -> float:
        """When `size` bytes are through that begin to drain at `when`, each row at its own width."""
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
        """The first moment from `when` on whose probe was not lost."""
        place, row = (when + self.offset) % self.duration, self.row(when)
        while self.losses and self.losses[row]:
            when += self._end(row) - place
            row = (row + 1) % len(self.times)
            place = self.times[row]
        return when

    def _end(self, row: int) -> float:
        """When the row ceases to hold, seconds from the first."""
        return self.times[row + 1] if row + 1 < len(self.times) else self.duration


def read_trace(path: Path, session: str | None = None) -> Trace:
    """Read a CSV with a header and at least `time_s,rtt_ms`; optional `loss` (0 or 1 per probe), `bw_mbps`
    and `session`; other columns and rows without an `rtt_ms` are passed over, except lost probes.

    `session` picks one session of a file that has several; by default the first. Raises `UserError` that
    names the line, or says that nothing would ever arrive.
    """
    with csv_reader("the trace", path) as reader:
        _check_header(path, reader.fieldnames)
        rows = [_Row(path, reader.line_num, values) for values in reader]
    chosen = _one_session(path, rows, session)
    return _columns(path, [row for row in chosen if row.is_measured])


class _Row:
    """One line, its numbers checked."""

    def __init__(self, path: Path, line: int, values: Mapping[str, str | None]) -> None:
        self._where = f"the trace {path}, line {line}"
        self.session = values.get("session") or ""
        self.time = cell_number(self._where, values, "time_s")
        self.is_lost = self._lost(values.get("loss") or "0")
        self.is_measured = bool(values.get("rtt_ms")) or self.is_lost
        self.rtt = cell_number(self._where, values, "rtt_ms") * 1e-3 if values.get("rtt_ms") else math.nan
        self.bandwidth = (
            cell_number(self._where, values, "bw_mbps") * MBIT if values.get("bw_mbps") else math.nan
        )

    def _lost(self, text: str) -> bool:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if found not in (0.0, 1.0):
            raise self.fail(f"loss is {text!r}; a probe is either lost (1) or not (0)")
        return found == 1.0

    def fail(self, what: str) -> UserError:
        return UserError(f"{self._where}: {what}")


def _check_header(path: Path, names: object) -> None:
    found = list(names) if isinstance(names, list | tuple) else []
    for column in ("time_s", "rtt_ms"):
        if column not in found:
            raise UserError(
                f"the trace {path}, line 1: no column {column!r} among {', '.join(found) or 'none'}"
            )


def _one_session(path: Path, rows: list[_Row], session: str | None) -> list[_Row]:
    names = list(dict.fromkeys(row.session for row in rows))
    if session is not None and session not in names:
        raise UserError(f"the trace {path} has no session {session!r}; it has {', '.join(names[:10])}")
    wanted = session if session is not None else (names[0] if names else "")
    return [row for row in rows if row.session == wanted]


def _columns(path: Path, rows: list[_Row]) -> Trace:
    if not rows:
        raise UserError(f"the trace {path} has no row with an rtt_ms")
    # Where no row has one all probes are lost, which `Trace` refuses.
    known = next((row.rtt for row in rows if not math.isnan(row.rtt)), math.nan)
    start, before = rows[0].time, rows[0].time
    times, rtts, losses, bandwidths = list[float](), list[float](), list[bool](), list[float]()
    for row in rows:
        if row.time < before:
            raise row.fail(f"time_s falls from {before:g} to {row.time:g}; rows must be in order of time")
        before = row.time
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

    A zero tells no width: where the probe came back something did pass, and phones that log their traffic
    (Raca et al., MMSys 2020) write 0 while nobody asks for anything, beside pings that take their usual time.
    Where the probe was lost so is everything else.
    """
    last = next((width for width in bandwidths if width > 0), 0.0)
    filled = []
    for width in bandwidths:
        last = width if width > 0 else last  # NaN is not above 0
        filled.append(last)
    return tuple(filled)
