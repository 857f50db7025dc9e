"""Mahimahi's packet-delivery traces: when a link may send, not how wide it is (Netravali et al. 2015).

A text file with one whole number of milliseconds per line, not falling. Each is an opportunity to deliver
`PACKET` bytes; after the last the file begins again, its last number later. As in mm-link, bytes are what is
counted: messages that wait together share an opportunity, a long one takes several, and an opportunity that
finds nothing waiting is lost. IP and TCP headers are not counted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.errors import UserError
from simulator.documents import read_text

PACKET: Final = 1504  # bytes per opportunity: an Ethernet MTU and the four bytes that mahimahi's tunnel adds
MS = 1000.0  # in a second


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Moments of delivery, milliseconds from the world's beginning; begun again every `times[-1]`."""

    name: str
    times: tuple[int, ...]  # not falling, the last above 0

    def when(self, index: int) -> float:
        """Seconds until opportunity `index`, counted through all repetitions."""
        cycle, place = divmod(index, len(self.times))
        return (cycle * self.times[-1] + self.times[place]) / MS

    def first_after(self, now: float) -> int:
        """Index of the first opportunity later than `now` seconds."""
        cycle = int(now * MS // self.times[-1])
        index = cycle * len(self.times) + bisect_right(self.times, now * MS - cycle * self.times[-1])
        while index > 0 and self.when(index - 1) > now:  # milliseconds were rounded
            index -= 1
        while self.when(index) <= now:
            index += 1
        return index


class Cursor:
    """How far one direction of a connection has used up its schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._index = -1  # of the opportunity that the newest message ended in
        self._left = 0  # bytes that it still has

    def take(self, now: float, size: int) -> float:
        """When the last of `size` bytes is delivered, seconds; `now` must not fall from call to call."""
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
