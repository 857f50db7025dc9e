"""What travels: the payload of every topic (docs/fleet.md). Times are seconds since 1970, by the sender."""

# ruff: noqa: RUF009 (the calls make dataclass fields)

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum

from edge_client.core.fleet import record
from edge_client.core.fleet.record import KEY, Record

FAR = 4102444800.0
"""The year 2100; no time stands beyond it."""

MAX_TELEMETRY = 1023
"""Bytes of one telemetry message: under 1 KiB, so that thousands of devices stay cheap."""

LABEL = re.compile(r"[A-Za-z0-9#][A-Za-z0-9._:#+-]{0,63}")
"""A model's or a verifier's name: no spaces, so no sentence fits."""

HASH = re.compile(r"[0-9a-f]{8,64}")

ENDPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
"""HOST:PORT."""

LABEL_WORDS = "a name of 1 to 64 letters, digits and . _ : # + -"


def label(text: str) -> str:
    """The text if it reads as a name, else a hash of it: equal texts stay equal, and nothing is told."""
    if not text or LABEL.fullmatch(text):
        return text
    return "#" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def stamp(wall: float) -> float:
    """A time that may stand in a message, whatever the clock says."""
    return min(max(0.0, wall), FAR)


class State(Enum):
    """Of a device or a verifier."""

    ONLINE = "online"
    OFFLINE = "offline"


class Mode(Enum):
    """How a device serves its user now."""

    IDLE = "idle"
    AHEAD = "ahead"  # it drafts, the verifier decides
    SERVER_ONLY = "server_only"  # it does not draft
    DEVICE_ONLY = "device_only"  # no verifier can be had
    HALTED = "halted"  # the fleet's operator stopped it


class Kill(Enum):
    """What an operator can stop everywhere at once."""

    NONE = "none"
    DRAFT_OFF = "draft_off"  # no draft steps: ordinary streaming from the verifier
    REMOTE_OFF = "remote_off"  # no verifier is asked: the device alone, or nothing
    HALT = "halt"  # no generations


class DraftState(Enum):
    """Of the draft model."""

    LOADED = "loaded"
    UNLOADED = "unloaded"
    FAILED = "failed"


class LinkState(Enum):
    """Between a device and its verifier."""

    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class Power(Enum):
    """Where a device takes it from."""

    MAINS = "mains"
    BATTERY = "battery"
    UNKNOWN = "unknown"


class EventKind(Enum):
    """What happened; nothing more is told than this, how often, and one number."""

    STARTED = "started"
    STOPPED = "stopped"
    FALLBACK = "fallback"  # the device went on alone
    RESUMED = "resumed"  # a generation went on after a reconnect
    VERIFIER_LOST = "verifier_lost"
    VERIFIER_BACK = "verifier_back"
    DRAFT_LOADED = "draft_loaded"
    DRAFT_UNLOADED = "draft_unloaded"
    DRAFT_FAILED = "draft_failed"
    ORDER_APPLIED = "order_applied"
    ORDER_REFUSED = "order_refused"
    ORDER_EXPIRED = "order_expired"
    KILL_CHANGED = "kill_changed"
    CLOCK_WRONG = "clock_wrong"
    TAKEN_OVER = "taken_over"  # another process connected under this device's name
    PUBLISH_DENIED = "publish_denied"
    FLOODED = "flooded"


class Fault(Enum):
    """Why a configuration was not taken, or not wholly."""

    UNKNOWN_KEY = "unknown_key"
    FORBIDDEN_KEY = "forbidden_key"
    BAD_VALUE = "bad_value"
    NOT_APPLIED = "not_applied"
    EXPIRED = "expired"
    CLOCK = "clock"
    REV = "rev"
    MALFORMED = "malformed"


class CommandName(Enum):
    """All that a device can be told to do."""

    PING = "ping"
    REPORT = "report"
    RELOAD_CONFIG = "reload_config"
    UNLOAD_DRAFT = "unload_draft"
    LOAD_DRAFT = "load_draft"
    REBIRTH = "rebirth"


class Outcome(Enum):
    """Of a command."""

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"  # no such command
    EXPIRED = "expired"
    BUSY = "busy"  # too many commands are remembered; a later one will find room
    MALFORMED = "malformed"


@dataclass(frozen=True, kw_only=True)
class Presence(Record):
    """A device's birth, or its death: a last will has the epoch of the birth that it belongs to."""

    state: State = record.member(State)
    epoch: int = record.whole()
    at: float = record.number(most=FAR)
    version: str | None = record.matches(LABEL, LABEL_WORDS, None)
    draft: str | None = record.matches(LABEL, LABEL_WORDS, None)
    verifier: str | None = record.matches(LABEL, LABEL_WORDS, None)
    mode: Mode | None = record.member(Mode, None)


@dataclass(frozen=True, kw_only=True)
class SpecTelemetry(Record):
    """How well speculation works. Counts run since the daemon started."""

    generations: int = record.whole(0)
    active: int = record.whole(0)  # generations under way
    tokens: int = record.whole(0)  # committed
    drafted: int = record.whole(0)  # proposed to the verifier
    accepted: int = record.whole(0)  # committed tokens that had been proposed
    draft_steps: int = record.whole(0)
    resumes: int = record.whole(0)
    fallbacks: int = record.whole(0)
    errors: int = record.whole(0)  # generations that ended in one
    acceptance: float | None = record.number(None, most=1.0)
    ttft_ms: float | None = record.number(None)  # median of late
    itl_ms: float | None = record.number(None)  # median of late
    speedup: float | None = record.number(None, most=1000.0)  # against server streaming, estimated


@dataclass(frozen=True, kw_only=True)
class LinkTelemetry(Record):
    """The network between the device and its verifier."""

    state: LinkState = record.member(LinkState, LinkState.UNKNOWN)
    rtt_ms: float | None = record.number(None)  # smoothed (RFC 9002)
    min_rtt_ms: float | None = record.number(None)
    rtt_variance_ms: float | None = record.number(None)
    bytes_up: int = record.whole(0)
    bytes_down: int = record.whole(0)
    reconnects: int = record.whole(0)
    step_ms: float | None = record.number(None)  # the verifier's, smoothed
    queue_ms: float | None = record.number(None)  # at the verifier, smoothed


@dataclass(frozen=True, kw_only=True)
class HostTelemetry(Record):
    """The device itself."""

    uptime_s: float = record.number(0.0)
    rss_mb: float | None = record.number(None)
    cpu: float | None = record.number(None, most=4096.0)  # processors busy with the daemon
    draft: DraftState = record.member(DraftState, DraftState.UNLOADED)
    draft_ms: float | None = record.number(None)  # of a draft step
    power: Power = record.member(Power, Power.UNKNOWN)
    battery: float | None = record.number(None, most=1.0)
    temperature_c: float | None = record.number(None, least=-60.0, most=200.0)
    throttled: bool | None = record.flag(None)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A device's figures; each part has a topic of its own."""

    spec: SpecTelemetry
    link: LinkTelemetry
    host: HostTelemetry


@dataclass(frozen=True, kw_only=True)
class Event(Record):
    """Something happened."""

    kind: EventKind = record.member(EventKind)
    at: float = record.number(most=FAR)
    epoch: int = record.whole()
    number: float | None = record.number(
        None, least=-1e15, most=1e15
    )  # revisions are milliseconds since 1970
    dropped: int = record.whole(0)  # events before this one that found no room


@dataclass(frozen=True, kw_only=True)
class ConfigFault(Record):
    """One reason. The key is one that stood in the signed order; the sentence stays on the device."""

    fault: Fault = record.member(Fault)
    key: str | None = record.matches(KEY, "a setting's name", None)


@dataclass(frozen=True, kw_only=True)
class Reported(Record):
    """What a device holds now, and what it thinks of the last order for it."""

    rev: int = record.whole()  # of the device's own configuration; 0 for none
    fleet_rev: int = record.whole()
    kill_rev: int = record.whole()
    kill: Kill = record.member(Kill)
    hash: str = record.matches(HASH, "8 to 64 hexadecimal digits")  # of the fleet's values as merged
    ok: bool = record.flag()  # whether the last order was taken
    refused_rev: int | None = record.whole(None)
    errors: tuple[ConfigFault, ...] = record.records(ConfigFault, (), most=16)


@dataclass(frozen=True, kw_only=True)
class Ack(Record):
    """What became of a command."""

    id: str = record.name()
    outcome: Outcome = record.member(Outcome)
    at: float = record.number(most=FAR)
    epoch: int = record.whole()


@dataclass(frozen=True, kw_only=True)
class VerifierStatus(Record):
    """A verifier offers itself, or its last will."""

    state: State = record.member(State)
    epoch: int = record.whole()
    at: float = record.number(most=FAR)
    endpoint: str | None = record.matches(ENDPOINT, "HOST:PORT", None)
    region: str | None = record.matches(LABEL, LABEL_WORDS, None)
    model: str | None = record.matches(LABEL, LABEL_WORDS, None)
    fingerprint: str | None = record.matches(HASH, "hexadecimal digits", None)  # of its token table
    load: float | None = record.number(None, most=1.0)
