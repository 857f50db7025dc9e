"""The toxics: what can be wrong with a link, in toxiproxy's words and units (ms, KB/s).

Each toxic is a frozen value with a name, a direction and a toxicity; it holds no state. The state that a
direction of one connection keeps for it (when it began, its last jitter) lives in `link.lane`.

Differences from toxiproxy, on purpose: `timeout` holds data instead of dropping it, so what arrives is always
a prefix of what was sent; `reset_peer` counts from the moment the toxic applies, not from the first data.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, ClassVar

from link.errors import SettingsError

MTU = 1460
"""Bytes of payload in an Ethernet frame: the least that a link serialises as one."""

SERIALISE_TIME = 0.001
"""Seconds: a fast link serialises up to this much as one piece, so it costs at most 1,000 timers a second."""


class Stream(StrEnum):
    """A direction. Upstream runs from the client to the server, downstream back to the client."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


@dataclass(frozen=True, kw_only=True)
class Toxic:
    """What all toxics share. Raises `SettingsError` when a value is out of range."""

    kind: ClassVar[str]
    stream: Stream = Stream.DOWNSTREAM  # as in toxiproxy
    toxicity: float = 1.0  # share of connections that it applies to, 0 to 1; drawn once per connection
    name: str = ""  # unique on a link; "<kind>_<stream>" when empty, as in toxiproxy

    def __post_init__(self) -> None:
        object.__setattr__(self, "stream", self._to_stream(self.stream))  # a plain "upstream" will do
        if not self.name:
            object.__setattr__(self, "name", f"{self.kind}_{self.stream}")
        self._check("toxicity", "", 0.0, 1.0)

    def _to_stream(self, word: str) -> Stream:
        try:
            return Stream(word)
        except ValueError:
            raise SettingsError(
                f"toxic {self.kind}: stream is {word!r}; it can be {', '.join(Stream)}"
            ) from None

    def _check(self, field: str, unit: str, least: float, most: float = math.inf) -> None:
        value = getattr(self, field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and least <= value <= most:
            return
        limits = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        wanted = f"a finite number {limits} {unit}".rstrip()
        raise SettingsError(f"toxic {self.name!r}: {field} is {value!r}; give {wanted}")

    def applies(self, seed: int, connection: int) -> bool:
        """Whether it applies to this connection: a pure draw, so an update of the toxic keeps the verdict."""
        return self.toxicity >= 1.0 or Random(f"{seed}/{connection}/{self.name}").random() < self.toxicity


@dataclass(frozen=True)
class Latency(Toxic):
    """Delays all data by `latency` +- `jitter`, in order, without limiting how much is on its way."""

    kind = "latency"
    latency: float  # ms, one way
    jitter: float = 0.0  # ms, half width of a uniform law; the delay never goes below 0
    correlation: float = 0.0  # 0 to 1: share of the last deviation kept in the next one (as in tc-netem)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("latency", "ms", 0.0)
        self._check("jitter", "ms", 0.0)
        self._check("correlation", "", 0.0, 1.0)

    def delay_time(self, deviation: float) -> float:
        """Seconds of delay for a deviation from -1 to 1."""
        return max(0.0, self.latency + self.jitter * deviation) / 1000


@dataclass(frozen=True)
class Bandwidth(Toxic):
    """Lets at most `rate` through: data waits for the wire, then takes size / rate to cross it."""

    kind = "bandwidth"
    rate: float  # KB/s of 1,000 bytes, as toxiproxy counts: bytes per millisecond

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("rate", "KB/s", 0.001)

    def serialise_time(self, size: int) -> float:
        """Seconds that `size` bytes occupy the wire."""
        return size / (self.rate * 1000)

    @property
    def piece_size(self) -> int:
        """Bytes that cross the wire as one."""
        return max(MTU, int(self.rate * 1000 * SERIALISE_TIME))


@dataclass(frozen=True)
class SlowClose(Toxic):
    """Delays the end of the stream (the half-close) by `delay`, after the data."""

    kind = "slow_close"
    delay: float  # ms

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("delay", "ms", 0.0)


@dataclass(frozen=True)
class Timeout(Toxic):
    """Holds all data and closes the connection after `timeout`; 0 holds until the toxic is removed."""

    kind = "timeout"
    timeout: float = 0.0  # ms since the toxic applies to the connection

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("timeout", "ms", 0.0)


@dataclass(frozen=True)
class ResetPeer(Toxic):
    """Resets both ends (TCP RST) after `timeout`; until then data passes."""

    kind = "reset_peer"
    timeout: float = 0.0  # ms since the toxic applies to the connection

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("timeout", "ms", 0.0)


@dataclass(frozen=True)
class LimitData(Toxic):
    """Closes the connection once `bytes` have been delivered since the toxic applies to it."""

    kind = "limit_data"
    bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("bytes", "bytes", 0.0)
        if not isinstance(self.bytes, int):
            raise SettingsError(f"toxic {self.name!r}: bytes is {self.bytes!r}; give a whole number")


KINDS: Mapping[str, type[Toxic]] = {
    kind.kind: kind for kind in (Latency, Bandwidth, SlowClose, Timeout, ResetPeer, LimitData)
}


def rtt(rtt: float, *, jitter: float = 0.0, correlation: float = 0.0) -> tuple[Latency, Latency]:
    """Two latency toxics that add `rtt` ms to a round trip, half on each direction, as is its `jitter` ms."""
    up, down = (
        Latency(rtt / 2, jitter=jitter / 2, correlation=correlation, stream=stream)
        for stream in (Stream.UPSTREAM, Stream.DOWNSTREAM)
    )
    return up, down


def both_ways(toxic: Toxic) -> tuple[Toxic, Toxic]:
    """The same toxic on each direction, under its default names."""
    up, down = (dataclasses.replace(toxic, stream=stream, name="") for stream in Stream)
    return up, down


def change(toxic: Toxic, **changes: Any) -> Toxic:
    """The toxic with some fields changed. Raises `SettingsError` for a field that it does not have."""
    _refuse_unknown(toxic.kind, changes, _fields(type(toxic)))
    return dataclasses.replace(toxic, **changes)


def toxic_from_json(value: object) -> Toxic:
    """A toxic from toxiproxy's JSON: `{"type", "name"?, "stream"?, "toxicity"?, "attributes": {...}}`.

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
    shared = _fields(Toxic)
    _refuse_unknown(kind, head, shared)
    _refuse_unknown(kind, attributes, [field for field in _fields(KINDS[kind]) if field not in shared])
    return _build(KINDS[kind], {**head, **attributes})


def toxic_to_json(toxic: Toxic) -> dict[str, object]:
    """The JSON form that `toxic_from_json` reads back to an equal toxic."""
    fields = {field: getattr(toxic, field) for field in _fields(type(toxic))}
    head = {field: fields.pop(field) for field in ("name", "stream", "toxicity")}
    return {"type": toxic.kind, **head, "stream": str(toxic.stream), "attributes": fields}


def _build(kind: type[Toxic], fields: Mapping[str, Any]) -> Toxic:
    try:
        return kind(**fields)
    except TypeError as error:  # all names are known here, so one is missing
        raise SettingsError(f"toxic {kind.kind}: an attribute is missing ({error})") from None


def _fields(kind: type[Toxic]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _refuse_unknown(kind: str, given: Iterable[str], known: list[str]) -> None:
    for field in given:
        if field not in known:
            raise SettingsError(f"toxic {kind}: there is no field {field!r} here; it has {', '.join(known)}")
