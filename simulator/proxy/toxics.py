"""Defines the toxics: the faults of a link, in toxiproxy's words and units (ms, KB/s).

Each toxic is a frozen value with a name and a direction; it holds no state. What arrives is always a prefix
of what was sent.
"""

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

# What the two peers do (refuse, reset, vanish) is no error here: it is what a link is there to show.


class LinkError(Exception):
    """The base of every error that this package raises on purpose."""


class SettingsError(LinkError, ValueError):
    """Reports a value out of its range; the message names it, its unit and the allowed range."""


class UnknownToxicError(LinkError, LookupError):
    """Reports an unknown toxic; the message lists the known names."""


class LinkStateError(LinkError, RuntimeError):
    """Reports a call before the link was started, or after it was closed."""


MTU = 1460
"""Bytes of payload in an Ethernet frame: the least that a link serialises as one."""

SERIALISE_TIME = 0.001
"""Seconds: a fast link serialises up to this much as one piece, so it costs at most 1,000 timers a second."""


class LinkDirection(StrEnum):
    """Names a direction. Upstream runs from the client to the server, downstream back to the client."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


def _limited(unit: str, default: Any = dataclasses.MISSING, least: float = 0.0) -> Any:
    """Return a field whose value the toxic checks."""
    return dataclasses.field(default=default, metadata={"unit": unit, "least": least})


@dataclass(frozen=True, kw_only=True)
class Toxic:
    """Holds the fields that all toxics share. Raises `SettingsError` when a value is out of range."""

    kind: ClassVar[str]
    stream: LinkDirection = LinkDirection.DOWNSTREAM  # as in toxiproxy
    name: str = ""  # unique on a link; "<kind>_<stream>" when empty, as in toxiproxy

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"{self.kind}_{self.stream}")
        for field in dataclasses.fields(self):
            if field.metadata:
                self._check(field.name, **field.metadata)

    def _check(self, field: str, unit: str, least: float) -> None:
        value = getattr(self, field)
        if not (math.isfinite(value) and value >= least):
            wanted = f"a finite number of at least {least:g} {unit}"
            raise SettingsError(f"toxic {self.name!r}: {field} is {value!r}; give {wanted}")


@dataclass(frozen=True)
class Latency(Toxic):
    """Delays all data by `latency` +- `jitter`, in order, without limiting how much is on its way."""

    kind = "latency"
    latency: float = _limited("ms")  # one way
    jitter: float = _limited("ms", 0.0)  # half width of a uniform law; the delay never goes below 0

    def delay_time(self, deviation: float) -> float:
        """Return the delay in seconds for a deviation from -1 to 1."""
        return max(0.0, self.latency + self.jitter * deviation) / 1000


@dataclass(frozen=True)
class Bandwidth(Toxic):
    """Lets at most `rate` through: data waits for the wire, then takes size / rate to cross it."""

    kind = "bandwidth"
    rate: float = _limited("KB/s", least=0.001)  # of 1,000 bytes, as toxiproxy counts: bytes per millisecond

    def serialise_time(self, size: int) -> float:
        """Return the seconds that `size` bytes occupy the wire."""
        return size / (self.rate * 1000)

    @property
    def piece_size(self) -> int:
        """Return the number of bytes that cross the wire as one piece."""
        return max(MTU, int(self.rate * 1000 * SERIALISE_TIME))


@dataclass(frozen=True)
class Hold(Toxic):
    """Holds all data until the toxic is removed, and loses none: toxiproxy's `timeout` of 0."""

    kind = "hold"


def rtt(rtt: float, *, jitter: float = 0.0) -> tuple[Toxic, ...]:
    """Return two latency toxics that add `rtt` ms to a round trip; each direction gets half of both."""
    return both_ways(Latency(rtt / 2, jitter=jitter / 2))


def both_ways(toxic: Toxic) -> tuple[Toxic, ...]:
    """Return the same toxic on each direction, under its default names."""
    return tuple(dataclasses.replace(toxic, stream=stream, name="") for stream in LinkDirection)
