"""A device's side of its fleet, sans-IO: messages and times go in, effects come out in order.

No message raises. Rejected documents are counted by reason. The last reason stays on the device as a
sentence; only a version and the name of a setting leave the device.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edge_client.fleet.document import (
    FAR,
    LARGEST,
    Document,
    Fault,
    Kill,
    NotBelieved,
    PayloadError,
    Presence,
    Reason,
    State,
    Topics,
    Verify,
    decode,
    encode,
    label,
    parse,
    unseal,
)

AGAIN_TIME = 2.0
"""Seconds between births: two devices with the same name must not answer each other for ever."""

FORMAT, VERSION = "forerun fleet state", 2
MAX_SIZE = 1 << 18
"""Bytes of a state file."""

Apply = Callable[[Mapping[str, Any]], str]
"""Applies the document's settings -> the fault as a sentence; empty if they hold from now on."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Holds the facts that a device keeps over a restart, as the JSON of its state file.

    Payloads are kept verbatim and checked again after a restart. Versions are counted by key: a new key ends
    all documents of a stolen one, however large their versions are.
    """

    epoch: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)  # the newest seen, by public key in hex
    newest: bytes = b""
    applied: bytes = b""  # the newest whose settings could be applied

    def to_bytes(self) -> bytes:
        payloads = {"newest": self.newest.decode(), "applied": self.applied.decode()}
        found = {"format": FORMAT, "version": VERSION, "epoch": self.epoch, "versions": dict(self.versions)}
        return json.dumps(found | payloads, indent=1).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Memory:
        """Parse a state file. Raise `PayloadError`."""
        found = parse(payload, MAX_SIZE)
        if found.get("format") != FORMAT or found.get("version") not in (1, VERSION):
            raise PayloadError(f"it is no {FORMAT!r} of version {VERSION}")
        if found["version"] != VERSION:
            return cls()  # orders of an earlier version mean nothing now
        try:
            versions = {str(key): _whole(version) for key, version in found["versions"].items()}
            payloads = found["newest"].encode(), found["applied"].encode()
            return cls(_whole(found["epoch"]), versions, *payloads)
        except (KeyError, ValueError, AttributeError):
            raise PayloadError("it lacks keys of a state file") from None


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish this payload, retained."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Save:
    """Write this to the state file before the next effect."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Obey:
    """Apply the kill switch from now on."""

    kill: Kill


Effect = Publish | Save | Obey


@dataclass(eq=False, slots=True)
class HeldDocument:
    """Holds an accepted document, and its fault if its settings could not be applied."""

    document: Document
    payload: bytes
    fault: Fault | None = None
    setting: str | None = None


class FleetMachine:
    """Decides a device's part in its fleet. Driven by `edge_client.fleet.device`: after each input it carries
    out `drain`, and it calls `on_timer` by `next_at`.

    `now` is monotonic, `wall` since 1970, both in seconds; `key` is the fleet's public key in hex.
    """

    def __init__(
        self, topics: Topics, key: str, verify: Verify, settable: frozenset[str], apply: Apply
    ) -> None:
        self._topics, self._key, self._verify = topics, key, verify
        self._settable, self._apply = settable, apply
        self._versions = dict[str, int]()
        self._newest: HeldDocument | None = None  # its kill switch holds
        self._good: HeldDocument | None = None  # the newest whose settings could be applied
        self._applied: HeldDocument | None = None  # whose settings hold now; None: the device's own alone
        self.kill = Kill.NONE
        self.refused = dict.fromkeys(Reason, 0)
        self.last_refusal = ""  # a sentence, for the person at the device
        self._epoch = 0
        self._epochs = deque[int](maxlen=64)  # of this process's connections
        self.has_rival = False  # this connection has heard another process under our name
        self._about = dict[str, Any]()
        self._connected = self._is_due = False
        self._told, self._told_at = b"", 0.0
        self._effects = list[Effect]()

    # What the driver asks

    @property
    def applied(self) -> int | None:
        """The version of the document whose settings hold."""
        return self._applied.document.version if self._applied else None

    def drain(self) -> list[Effect]:
        """Return the effects to carry out, in order. Each effect is given once."""
        effects, self._effects = self._effects, []
        return effects

    def next_at(self) -> float | None:
        """Return the monotonic second at which `on_timer` is due. A document may end a minute late."""
        return self._told_at + AGAIN_TIME if self._is_due and self._connected else None

    # Inputs

    def on_start(self, memory: Memory, wall: float) -> None:
        """Restore the documents of the last run, with or without a broker."""
        self._epoch, self._versions = memory.epoch, dict(memory.versions)
        self._newest, self._good = self._known(memory.newest), self._known(memory.applied)
        self._settle(wall)

    def connecting(self, wall: float) -> bytes:
        """Begin a new epoch for a connection attempt. Return its last will for the status topic."""
        self._epoch = min(max(self._epoch + 1, int(_stamp(wall) * 1000)), LARGEST)
        self._epochs.append(self._epoch)
        self.has_rival = False
        self._save()
        return self.death(wall)

    def on_connected(self, now: float, wall: float) -> None:
        """Note that the connection is made and the topics are subscribed to."""
        self._connected = True
        self._be_born(now, wall)

    def on_lost(self) -> None:
        """Note that the connection has ended. The document stays in force."""
        self._connected = False

    def death(self, wall: float) -> bytes:
        """Return the final payload of the status topic, for a daemon that stops."""
        return encode(Presence(state=State.OFFLINE, epoch=self._epoch, at=_stamp(wall)))

    def on_about(self, about: Mapping[str, str]) -> None:
        """Take version, draft, verifier and mode of the daemon; the next birth reports a change."""
        labels = {key: label(text) for key, text in about.items()}
        self._is_due |= labels != self._about
        self._about = labels

    def on_message(self, topic: str, payload: bytes, wall: float) -> None:
        """Take a message. Never raises. The next birth overwrites a late last will."""
        if topic == self._topics.status:
            self._is_due |= payload != self._told
            self.has_rival |= self._is_of_a_rival(payload)
        elif topic == self._topics.desired and payload:
            try:
                self._take(payload, wall)
            except NotBelieved as error:
                self.refused[error.reason] += 1
                self.last_refusal = f"the fleet's document is rejected: {error}"

    def on_timer(self, now: float, wall: float) -> None:
        """Do what is due: end a document, or publish a birth."""
        self._settle(wall)
        next_at = self.next_at()
        if next_at is not None and now >= next_at:
            self._be_born(now, wall)

    # Inside

    def _is_of_a_rival(self, payload: bytes) -> bool:
        """Return whether another process wrote it since our first connection."""
        try:
            epoch = decode(Presence, payload).epoch
        except PayloadError:
            return False
        return bool(self._epochs) and epoch >= self._epochs[0] and epoch not in self._epochs

    def _take(self, payload: bytes, wall: float) -> None:
        """Take a document. Empty payloads never come here: every writer can clear the topic."""
        if self._newest is not None and payload == self._newest.payload:
            return
        document = self._believed(payload)
        seen = self._versions.get(self._key, 0)
        if document.version <= seen:
            raise NotBelieved(
                Reason.REPLAYED,
                f"version {document.version} is not newer than {seen}, the newest that this device has seen",
            )
        self._versions[self._key] = document.version
        self._newest = HeldDocument(document, payload)
        self._save()
        self._settle(wall)
        self._is_due = True

    def _believed(self, payload: bytes) -> Document:
        """Return the document of a payload. Raise `NotBelieved`."""
        document = unseal(payload, self._verify)
        if document.tenant != self._topics.tenant:
            raise NotBelieved(Reason.ELSEWHERE, f"it was signed for the tenant {document.tenant}")
        return document

    def _known(self, payload: bytes) -> HeldDocument | None:
        """Return a document of the state file; None if no key trusted today signed it."""
        try:
            return HeldDocument(self._believed(payload), payload) if payload else None
        except NotBelieved:
            return None

    def _settle(self, wall: float) -> None:
        """Apply the newest document's kill switch, and the settings of the newest applicable document.
        Documents end by this device's clock, which may be set at any time."""
        before = self.kill, self._applied
        newest = self._newest
        self.kill = newest.document.kill if newest and not newest.document.has_expired(wall) else Kill.NONE
        if self.kill is not before[0]:
            self._effects.append(Obey(self.kill))
        while (wanted := self._wanted(wall)) is not self._applied:
            if self._try(wanted):
                self._applied = wanted
                if wanted is not None and wanted is not self._good:
                    self._good = wanted
                    self._save()
        self._is_due |= before != (self.kill, self._applied)

    def _wanted(self, wall: float) -> HeldDocument | None:
        for held in (self._newest, self._good):
            if held is not None and held.fault is None and not held.document.has_expired(wall):
                return held
        return None

    def _try(self, held: HeldDocument | None) -> bool:
        """Return whether the document's settings now hold; else set its `fault`."""
        settings = held.document.settings if held else {}
        unknown = [name for name in settings if name not in self._settable]
        words = f"a fleet may not set {', '.join(unknown)}" if unknown else self._apply(settings)
        if words:
            self.last_refusal = f"the fleet's settings do not hold: {words}"
        if words and held:
            held.fault = Fault.UNKNOWN_SETTING if unknown else Fault.BAD_VALUE
            held.setting = next(iter(unknown or [name for name in settings if name in words]), None)
        return held is None or not words

    def _be_born(self, now: float, wall: float) -> None:
        birth = Presence(
            state=State.ONLINE,
            epoch=self._epoch,
            at=_stamp(wall),
            **self._about,
            kill=self.kill,
            applied=self.applied,
        )
        newest = self._newest
        if newest is not None and newest is not self._applied:
            fault = newest.fault or Fault.EXPIRED
            birth = replace(birth, refused=newest.document.version, fault=fault, setting=newest.setting)
        self._told, self._told_at, self._is_due = encode(birth), now, False
        self._effects.append(Publish(self._topics.status, self._told))

    def _save(self) -> None:
        newest, good = (held.payload if held else b"" for held in (self._newest, self._good))
        self._effects.append(Save(Memory(self._epoch, dict(self._versions), newest, good)))


def _stamp(wall: float) -> float:
    """Clamp a time to the range that a message allows."""
    return min(max(0.0, wall), FAR)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError
    return value
