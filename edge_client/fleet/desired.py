"""Decides which of the fleet's documents holds on a device. Reads no clock, file or socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from edge_client.fleet.document import Document, Kill, PayloadError, Verify, parse, unseal

FORMAT, VERSION = "forerun fleet state", 2


@dataclass(eq=False, slots=True)
class HeldDocument:
    """Holds an accepted document, and whether its settings could not be applied."""

    document: Document
    payload: bytes  # verbatim, to be checked again after a restart
    has_fault: bool = False


class DesiredState:
    """Holds a device's documents. The device calls `load` once, `take` for each message, saves `dump()` if
    that is true, and then calls `settle`, also as time passes. `wall` is in seconds since 1970.

    Versions are counted by key: a new key ends all documents of a stolen one, however large their versions.
    Args: key, the fleet's public key in hex; apply, applies settings and returns their fault as a sentence;
    obey, applies the kill switch.
    """

    def __init__(
        self,
        tenant: str,
        key: str,
        verify: Verify,
        apply: Callable[[Mapping[str, Any]], str],
        obey: Callable[[Kill], None],
    ) -> None:
        self._tenant, self._key, self._verify = tenant, key, verify
        self._apply, self._obey = apply, obey
        self._versions = dict[str, int]()  # the newest seen, by key
        self._newest: HeldDocument | None = None  # its kill switch holds
        self._good: HeldDocument | None = None  # the newest before it whose settings could be applied
        self._applied: HeldDocument | None = None  # whose settings hold; None: the device's own alone
        self.kill = Kill.NONE
        self.rejected = 0
        self.last_refusal = ""  # a sentence, for the person at the device

    @property
    def applied(self) -> int | None:
        """The version of the document whose settings hold."""
        return self._applied.document.version if self._applied else None

    @property
    def refused(self) -> int | None:
        """The version of the newest document if its settings do not hold."""
        newest = self._newest
        return newest.document.version if newest and newest is not self._applied else None

    def dump(self) -> bytes:
        """Return the facts to keep over a restart, as JSON."""
        newest, good = (held.payload.decode() if held else "" for held in (self._newest, self._good))
        found = {"format": FORMAT, "version": VERSION, "versions": self._versions}
        return json.dumps(found | {"newest": newest, "applied": good}, indent=1).encode()

    def load(self, payload: bytes) -> None:
        """Take the facts of the last run. Raise `PayloadError` if they are none."""
        found = parse(payload, len(payload))
        try:
            if (found["format"], found["version"]) != (FORMAT, VERSION):
                raise ValueError
            self._versions = {key: index(version) for key, version in found["versions"].items()}
            newest, good = (found[name].encode() for name in ("newest", "applied"))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PayloadError(f"it is no {FORMAT!r} of version {VERSION}") from None
        self._newest, self._good = self._known(newest), self._known(good)

    def take(self, payload: bytes) -> bool:
        """Return whether the payload is a new document; `settle` applies it. Never raises."""
        if not payload or (self._newest is not None and payload == self._newest.payload):
            return False  # an empty payload clears the topic, which every writer can, and ends nothing
        try:
            document = self._believed(payload)
            if document.version <= self._versions.get(self._key, 0):
                raise PayloadError(f"version {document.version} is not newer than one that was here before")
        except PayloadError as error:
            self.rejected += 1
            self.last_refusal = f"the fleet's document is rejected: {error}"
            return False
        self._versions[self._key] = document.version
        self._newest, self._good = HeldDocument(document, payload), self._applied or self._good
        return True

    def settle(self, wall: float) -> None:
        """Apply the newest document's kill switch and settings, or the last good settings if its own fail.
        A document ends by this device's clock, which may be set at any time. No older one comes back."""
        newest = self._newest
        live = None if newest is None or newest.document.has_expired(wall) else newest
        kill = live.document.kill if live else Kill.NONE
        if kill is not self.kill:
            self.kill = kill
            self._obey(kill)
        for held in (live, self._good) if live else ():
            if held and not held.document.has_expired(wall) and (held is self._applied or self._holds(held)):
                self._applied = held
                return
        if self._applied is not None:
            self._applied = None
            self._apply({})

    def _holds(self, held: HeldDocument) -> bool:
        """Apply the document's settings. Return whether they hold from now on."""
        if not held.has_fault and (fault := self._apply(held.document.settings)):
            held.has_fault = True
            self.last_refusal = f"the fleet's settings do not hold: {fault}"
        return not held.has_fault

    def _believed(self, payload: bytes) -> Document:
        """Return the document of a payload. Raise `PayloadError`."""
        document = unseal(payload, self._verify)
        if document.tenant != self._tenant:
            raise PayloadError(f"it was signed for the tenant {document.tenant}")
        return document

    def _known(self, payload: bytes) -> HeldDocument | None:
        """Return a document of the last run; None if no key trusted today signed it."""
        try:
            return HeldDocument(self._believed(payload), payload) if payload else None
        except PayloadError:
            return None
