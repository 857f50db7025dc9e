"""Define how much message sizes reveal to an observer of the wire (docs/guarantees.md)."""

from __future__ import annotations

from enum import Enum


class Privacy(Enum):
    """Lists the levels of privacy; the values are their numbers on the wire."""

    OFF = 1  # a message is as long as its content
    PADDED = 2  # all messages of a direction have one size

    @property
    def title(self) -> str:
        """Return the level's name in options and settings."""
        return self.name.lower()


LEVELS = tuple(level.title for level in Privacy)
