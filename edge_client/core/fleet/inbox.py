"""What has arrived and not been looked at: the newest payload of each topic, within bounds.

A message that a client library drops from a full queue is lost after it was
acknowledged. So nothing is dropped that matters: what is retained has a place of its own each, which a flood
of other messages cannot take, and a newer payload of a topic replaces the older one.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.core.fleet.names import DeviceTopics
from edge_client.core.fleet.record import MAX_PAYLOAD

MAX_COMMANDS = 64
MAX_VERIFIERS = 64
"""Topics of a kind that wait at once. With payloads of `MAX_PAYLOAD` bytes, 1.1 MB at most wait in all."""


@dataclass(slots=True)
class Counts:
    """Of messages, since the daemon started."""

    received: int = 0
    replaced: int = 0  # by a newer one of their topic, before they were looked at
    oversize: int = 0
    unexpected: int = 0  # no topic of ours
    crowded: int = 0  # commands and verifiers for which there was no room


class Inbox:
    """Of one device. `put` is cheap: it looks at no payload but its length."""

    def __init__(self, topics: DeviceTopics) -> None:
        self._topics = topics
        shared = topics.shared
        self._own = (topics.status, topics.desired, shared.fleet_config, shared.kill)
        self._waiting = dict[str, bytes]()  # in the order of arrival
        self._crowds = {"command": 0, "verifier": 0}
        self.counts = Counts()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, topic: str, payload: bytes) -> None:
        """It has arrived."""
        counts = self.counts
        counts.received += 1
        if len(payload) > MAX_PAYLOAD:
            counts.oversize += 1
        elif topic in self._waiting:
            counts.replaced += 1
            self._waiting[topic] = payload
        elif topic in self._own or self._has_room(topic):
            self._waiting[topic] = payload

    def take(self) -> tuple[str, bytes] | None:
        """What to look at next. A topic that comes again stands last, so a flooded one starves no other."""
        if not self._waiting:
            return None
        topic = next(iter(self._waiting))
        crowd = self._crowd(topic)
        if crowd:
            self._crowds[crowd] -= 1
        return topic, self._waiting.pop(topic)

    def _has_room(self, topic: str) -> bool:
        crowd = self._crowd(topic)
        if crowd is None:
            self.counts.unexpected += 1
            return False
        if self._crowds[crowd] >= (MAX_COMMANDS if crowd == "command" else MAX_VERIFIERS):
            self.counts.crowded += 1
            return False
        self._crowds[crowd] += 1
        return True

    def _crowd(self, topic: str) -> str | None:
        if topic in self._own:
            return None
        if self._topics.command_of(topic) is not None:
            return "command"
        return "verifier" if self._topics.shared.verifier_of(topic) is not None else None
