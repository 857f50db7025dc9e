"""Decides which of the fleet's documents holds on a device. Reads no clock, file or socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import index
from typing import Any

from edge_client.fleet.document import Document, Kill, PayloadError, Verify, parse, unseal

FORMAT, VERSION = "forerun fleet state", 2


class DesiredState:
    """Holds a device's newest document. The device calls `load` once, `take` for each message, saves `dump()`
    if that is true, and then calls `settle`, also as time passes. `wall` is in seconds since 1970.

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
        self._payload = b""  # of the newest document, verbatim, to be checked again after a restart
        self._newest: Document | None = None  # its kill switch holds
        self._applied: Document | None = None  # its settings hold; None: the device's own alone
        self._tried: Document | None = None  # its settings were applied last, or could not be
        self.kill = Kill.NONE
        self.rejected = 0
        self.last_refusal = ""  # a sentence, for the person at the device

    @property
    def applied(self) -> int | None:
        """The version of the document whose settings hold."""
        return self._applied.version if self._applied else None

    @property
    def refused(self) -> int | None:
        """The version of the newest document if its settings do not hold."""
        return self._newest.version if self._newest and self._newest is not self._applied else None

    def dump(self) -> bytes:
        """Return the facts to keep over a restart, as JSON."""
        state = {"format": FORMAT, "version": VERSION, "versions": self._versions}
        return json.dumps(state | {"newest": self._payload.decode()}, indent=1).encode()

    def load(self, payload: bytes) -> None:
        """Take the facts of the last run. Raise `PayloadError` if they are none."""
        state = parse(payload, len(payload))
        try:
            if (state["format"], state["version"]) != (FORMAT, VERSION):
                raise ValueError
            self._versions = {key: index(version) for key, version in state["versions"].items()}
            newest = state["newest"].encode()
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PayloadError(f"it is no {FORMAT!r} of version {VERSION}") from None
        try:
            self._newest, self._payload = (self._believed(newest) if newest else None), newest
        except PayloadError:
            pass  # no key trusted today signed it

    def take(self, payload: bytes) -> bool:
        """Return whether the payload is a new document; `settle` applies it. Never raises."""
        if not payload or payload == self._payload:
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
        self._newest, self._payload = document, payload
        return True

    def settle(self, wall: float) -> None:
        """Apply the newest document's kill switch and settings. Settings that cannot be applied leave those
        in force. A document ends by this device's clock, which may be set at any time."""
        newest = self._newest
        live = None if newest is None or newest.has_expired(wall) else newest
        kill = live.kill if live else Kill.NONE
        if kill is not self.kill:
            self.kill = kill
            self._obey(kill)
        if live is not None and live is not self._tried:
            self._tried = live
            if not (fault := self._apply(live.settings)):
                self._applied = live
            else:
                self.last_refusal = f"the fleet's settings do not hold: {fault}"
        if self._applied and (live is None or self._applied.has_expired(wall)):
            self._applied = self._tried = None
            self._apply({})

    def _believed(self, payload: bytes) -> Document:
        document = unseal(payload, self._verify)
        if document.tenant != self._tenant:
            raise PayloadError(f"it was signed for the tenant {document.tenant}")
        return document
