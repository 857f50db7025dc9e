"""Who is there: a device's birth and last will, and how a reader tells a late will from a death.

A broker publishes the will of a connection that has stalled only after one and a half keepalive intervals
(10.75 s were measured with a keepalive of 5). By then the device may long be back under a new connection, and
the will would overwrite its birth. So both carry an epoch, which grows with every connection: a reader
ignores the death of an older epoch, and the device, which hears its own topic, tells its birth again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from edge_client.core.fleet.payloads import Mode, Presence, State, label, stamp
from edge_client.core.fleet.record import SchemaError, decode

AGAIN_TIME = 2.0
"""Seconds between births: two devices that share a name by mistake must not answer each other for ever."""

MAX_DEVICES = 20_000
"""That a reader holds; a broker cannot make it hold more."""


@dataclass(frozen=True, slots=True)
class About:
    """What a birth tells of a device. Texts that do not read as names are told as hashes."""

    version: str = ""
    draft: str = ""
    verifier: str = ""
    mode: Mode = Mode.IDLE


class OwnPresence:
    """This device's. `now` is monotonic, `wall` is not; both in seconds."""

    def __init__(self) -> None:
        self.about = About()
        self.epoch = 0
        self._used = deque[int](maxlen=64)  # epochs of this process
        self._told: Presence | None = None
        self._told_at = 0.0
        self._due = False

    def begin(self, epoch: int, wall: float) -> Presence:
        """A connection is about to be made; its last will."""
        self.epoch, self._told = epoch, None
        self._used.append(epoch)
        return Presence(state=State.OFFLINE, epoch=epoch, at=stamp(wall))

    def birth(self, now: float, wall: float) -> Presence:
        """To be published now."""
        about = self.about
        self._told = Presence(
            state=State.ONLINE,
            epoch=self.epoch,
            at=stamp(wall),
            version=label(about.version) or None,
            draft=label(about.draft) or None,
            verifier=label(about.verifier) or None,
            mode=about.mode,
        )
        self._told_at, self._due = now, False
        return self._told

    def on_about(self, about: About) -> None:
        """Something changed; told with the next birth, at `birth_at`."""
        self._due |= about != self.about
        self.about = about

    def on_status(self, payload: bytes) -> bool:
        """Our own topic says this; whether another process said it under our name since ours began.

        Whatever is not our birth is to be overwritten by it, at `birth_at`.
        """
        try:
            found = decode(Presence, payload) if payload else None
        except SchemaError:
            found = None
        self._due |= found != self._told
        return found is not None and found.epoch >= self._used[0] and found.epoch not in self._used

    @property
    def birth_at(self) -> float | None:
        """When to publish a birth, monotonic; None if there is no reason to."""
        return self._told_at + AGAIN_TIME if self._due and self._told else None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader knows of a device."""

    presence: Presence
    epoch: int  # of the newest birth


class Roster:
    """A reader's view of all devices."""

    def __init__(self) -> None:
        self._seen = dict[str, Seen]()

    def __iter__(self) -> Iterator[tuple[str, Presence]]:
        return iter((name, seen.presence) for name, seen in sorted(self._seen.items()))

    def on_presence(self, name: str, found: Presence) -> bool:
        """The device's topic says this; whether it changes the view."""
        known = self._seen.get(name)
        if known is None:
            if len(self._seen) < MAX_DEVICES:
                self._seen[name] = Seen(found, found.epoch)
            return name in self._seen
        if found.epoch < known.epoch and (found.state is State.OFFLINE or found.at <= known.presence.at):
            return False  # a late will; or a birth that something delivered again
        if found == known.presence:
            return False
        self._seen[name] = Seen(found, found.epoch)
        return True
