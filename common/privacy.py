"""How much an observer of the wire is to learn from sizes and times (docs/privacy.md)."""

from __future__ import annotations

from enum import Enum

from common.errors import UserError


class Privacy(Enum):
    """A level of it; each hides what those before it hide. The numbers are the wire's."""

    OFF = 1  # nothing: what is sent is as long as what it says
    PADDED = 2  # all messages of a direction have one size
    STRICT = 3  # and leave at fixed times, whether there is something to say or not

    @property
    def title(self) -> str:
        """In options and settings."""
        return self.name.lower()


LEVELS = tuple(level.title for level in Privacy)


def privacy_named(title: str) -> Privacy:
    """The level of that title. Raises `UserError`."""
    for level in Privacy:
        if level.title == title:
            return level
    raise UserError(f"the privacy {title!r} is not known; it is one of {', '.join(LEVELS)}")


def stricter(one: Privacy, other: Privacy) -> Privacy:
    """What holds where two sides ask for different levels."""
    return one if one.value >= other.value else other
