"""What plots have in common: one colour and marker per scheme, and words for axes. No matplotlib here."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from simulator.schemes import (
    CLAIRVOYANT,
    COLOCATED,
    DEVICE_ONLY,
    FORERUN,
    SERVER_STREAMING,
    SYNC_BEST,
)
from simulator.sweep import shown
from simulator.tables import Value

COLOURS = {
    SERVER_STREAMING: "#808080",
    SYNC_BEST: "#e06000",
    "chain": "#440077",
    FORERUN: "#00c080",
    CLAIRVOYANT: "#000000",
    COLOCATED: "#0050e0",
    DEVICE_ONLY: "#992200",
    "sync_delay_optimal": "#66ccff",
    "amusd": "#773333",
    "pearl": "#0099ff",
    "picospec": "#662255",
    "specedge": "#66dd66",
    "saguaro": "#5577aa",
    "parked": "#0000ff",
}
"""A scheme keeps its colour in every plot. Found by search, to be told apart on white with normal sight,
without red cones and without green cones (a test holds the distance); markers help, too."""

MARKERS = dict(zip(COLOURS, "osv^*DXP<>phd8", strict=True))

SPARE = (
    ("#eebb00", "o"),
    ("#bbaaff", "s"),
    ("#88aabb", "^"),
    ("#bbcc77", "D"),
    ("#444433", "v"),
    ("#ff88aa", "P"),
)
"""For growth policies with settings, of which there is no end."""

LABELS = {
    "profile": "network profile",
    "rtt_ms": "network round trip, ms",
    "jitter_ms": "jitter (standard deviation, one way), ms",
    "loss": "chance of losing a packet",
    "mean": "acceptance of the draft's best token",
    "step_ms": "target step, ms",
    "draft_ms": "draft step, ms",
    "clients": "clients",
    "rate_per_s": "sessions begun per second",
}
"""Of a plot's axes."""

TITLES = {
    "profile": "{}",
    "rtt_ms": "RTT {} ms",
    "jitter_ms": "jitter {} ms",
    "loss": "loss {}",
    "mean": "acceptance {}",
    "step_ms": "target step {} ms",
    "draft_ms": "draft step {} ms",
    "clients": "{} clients",
    "rate_per_s": "{} sessions/s",
}
"""Of panels, with the value in its place."""


Line = Literal["-", "--", ":"]


@dataclass(frozen=True, slots=True)
class Style:
    """How a scheme is drawn. The bound is dashed: nobody can run it."""

    colour: str
    marker: str
    line: Line = "-"


def styles(schemes: Iterable[str]) -> dict[str, Style]:
    """Of each. A name that is none of `COLOURS` gets a spare by its letters: the same in every plot, unless
    two in one plot would share it."""
    found: dict[str, Style] = {}
    taken: set[int] = set()
    for scheme in dict.fromkeys(schemes):
        if scheme in COLOURS:
            line: Line = "--" if scheme == CLAIRVOYANT else "-"
            found[scheme] = Style(COLOURS[scheme], MARKERS[scheme], line)
        else:
            place = _free_place(scheme, taken)
            taken.add(place)
            found[scheme] = Style(*SPARE[place], ":")
    return found


def title(values: Iterable[tuple[str, Value]]) -> str:
    """Of a panel, from (axis, value)."""
    return ", ".join(TITLES[axis].format(shown(value)) for axis, value in values)


def _free_place(name: str, taken: Collection[int]) -> int:
    first = zlib.crc32(name.encode())
    places = [(first + step) % len(SPARE) for step in range(len(SPARE))]
    return next((place for place in places if place not in taken), places[0])
