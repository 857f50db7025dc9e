"""Defines the toxics: the faults of a link, in toxiproxy's words and units (ms, KB/s).

Each toxic is a frozen value with a name, a direction and a toxicity; it holds no state. The state that a
direction of one connection keeps for it (when it began, its last jitter) lives in `simulator.proxy.lane`.

Differences from toxiproxy, on purpose: `timeout` holds data instead of dropping it, so what arrives is always
a prefix of what was sent; `reset_peer` counts from the moment the toxic applies, not from the first data.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, ClassVar

# What the two peers do (refuse, reset, vanish) is no error here: it is what a link is there to show.


class LinkError(Exception):
    """The base of every error that this package raises on purpose."""


class SettingsError(LinkError, ValueError):
    """Reports a value out of its range; the message names it, its unit and the allowed range."""


class ScriptError(LinkError, ValueError):
    """Reports an unreadable script; the message names the entry, counted from 0."""


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


def _limited(
    unit: str, default: Any = dataclasses.MISSING, least: float = 0.0, most: float = math.inf
) -> Any:
    """Return a field whose value the toxic checks."""
    return dataclasses.field(default=default, metadata={"unit": unit, "least": least, "most": most})


@dataclass(frozen=True, kw_only=True)
class Toxic:
    """Holds the fields that all toxics share. Raises `SettingsError` when a value is out of range."""

    kind: ClassVar[str]
    stream: LinkDirection = LinkDirection.DOWNSTREAM  # as in toxiproxy
    toxicity: float = _limited("", 1.0, most=1.0)  # share of connections, drawn once for each
    name: str = ""  # unique on a link; "<kind>_<stream>" when empty, as in toxiproxy

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "stream", LinkDirection(self.stream))  # a plain "upstream" will do
        except ValueError:
            raise SettingsError(
                f"toxic {self.kind}: stream is {self.stream!r}; it can be {', '.join(LinkDirection)}"
            ) from None
        if not self.name:
            object.__setattr__(self, "name", f"{self.kind}_{self.stream}")
        for field in dataclasses.fields(self):
            if field.metadata:
                self._check(field.name, **field.metadata)

    def _check(self, field: str, unit: str, least: float, most: float) -> None:
        value, is_count = getattr(self, field), unit == "bytes"
        is_number = isinstance(value, int if is_count else int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and least <= value <= most:
            return
        limits = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        wanted = f"a {'whole' if is_count else 'finite'} number {limits} {unit}".rstrip()
        raise SettingsError(f"toxic {self.name!r}: {field} is {value!r}; give {wanted}")

    def applies(self, seed: int, connection: int) -> bool:
        """Return whether the toxic applies to this connection: a pure draw, which an update keeps."""
        return self.toxicity >= 1.0 or Random(f"{seed}/{connection}/{self.name}").random() < self.toxicity


@dataclass(frozen=True)
class Latency(Toxic):
    """Delays all data by `latency` +- `jitter`, in order, without limiting how much is on its way."""

    kind = "latency"
    latency: float = _limited("ms")  # one way
    jitter: float = _limited("ms", 0.0)  # half width of a uniform law; the delay never goes below 0
    correlation: float = _limited("", 0.0, most=1.0)  # of the last deviation in the next, as in tc-netem

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
class SlowClose(Toxic):
    """Delays the end of the stream (the half-close) by `delay`, after the data."""

    kind = "slow_close"
    delay: float = _limited("ms")


@dataclass(frozen=True)
class Timeout(Toxic):
    """Holds all data and closes the connection after `timeout`; 0 holds until the toxic is removed."""

    kind = "timeout"
    timeout: float = _limited("ms", 0.0)  # since the toxic applies to the connection


@dataclass(frozen=True)
class ResetPeer(Toxic):
    """Resets both ends (TCP RST) after `timeout`; until then data passes."""

    kind = "reset_peer"
    timeout: float = _limited("ms", 0.0)  # since the toxic applies to the connection


@dataclass(frozen=True)
class LimitData(Toxic):
    """Closes the connection once `bytes` have been delivered since the toxic applies to it."""

    kind = "limit_data"
    bytes: int = _limited("bytes")


KINDS: Mapping[str, type[Toxic]] = {
    kind.kind: kind for kind in (Latency, Bandwidth, SlowClose, Timeout, ResetPeer, LimitData)
}


def rtt(rtt: float, *, jitter: float = 0.0, correlation: float = 0.0) -> tuple[Toxic, ...]:
    """Return two latency toxics that add `rtt` ms to a round trip; each direction gets half of both."""
    return both_ways(Latency(rtt / 2, jitter=jitter / 2, correlation=correlation))


def both_ways(toxic: Toxic) -> tuple[Toxic, ...]:
    """Return the same toxic on each direction, under its default names."""
    return tuple(dataclasses.replace(toxic, stream=stream, name="") for stream in LinkDirection)


def toxic_from_json(value: object) -> Toxic:
    """Build a toxic from toxiproxy's JSON: `{"type", "name"?, "stream"?, "toxicity"?, "attributes": {...}}`.

    Raises `SettingsError` when the kind or a field is unknown, missing or out of range.
    """
    if not isinstance(value, dict):
        raise SettingsError(f"a toxic is a JSON object with 'type' and 'attributes', not {value!r}")
    head = {key: value[key] for key in value if key not in ("type", "attributes")}
    kind, attributes = value.get("type"), value.get("attributes", {})
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingsError(f"there is no toxic of type {kind!r}; the types are {', '.join(KINDS)}")
    if not isinstance(attributes, dict):
        raise SettingsError(f"toxic {kind}: 'attributes' is {attributes!r}; give a JSON object")
    shared = [field.name for field in dataclasses.fields(Toxic)]
    own = [field.name for field in dataclasses.fields(KINDS[kind]) if field.name not in shared]
    for field, known in (*((name, shared) for name in head), *((name, own) for name in attributes)):
        if field not in known:
            raise SettingsError(f"toxic {kind}: there is no field {field!r} here; it has {', '.join(known)}")
    try:
        return KINDS[kind](**head, **attributes)
    except TypeError as error:  # all names are known here, so one is missing
        raise SettingsError(f"toxic {kind}: an attribute is missing ({error})") from None
