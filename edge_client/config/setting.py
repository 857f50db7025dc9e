"""One setting of the daemon: what it means, its unit, and what it may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any

from common.errors import UserError

Value = str | int | float | bool | tuple[str, ...]
"""What a setting can hold; the type of its default says which."""

Check = Callable[[Any], str]
"""From a value to what is wrong with it, as the rest of a sentence ("it must ..."); empty if nothing is."""

METADATA = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is said of a field, once, for files, variables, flags and pages."""

    meaning: str  # what it is and why one would change it, without a full stop
    unit: str = ""  # of a number
    low: float | None = None  # the smallest value
    high: float | None = None  # the greatest one
    choices: tuple[str, ...] = ()  # all that a text may be, if it may not be anything
    check: Check | None = None  # what bounds and choices cannot say
    form: str = ""  # what a text or an entry of a list looks like, for help and messages
    alias: str = ""  # a short flag beside the one that follows from the name
    is_path: bool = False  # of a file: in a file's own folder unless it is absolute
    is_local: bool = False  # never set by the fleet: it decides who may do what on this device


def setting(default: Value, meaning: str, **more: Any) -> Any:
    """A field of a section, with its `Setting`."""
    return field(default=default, metadata={METADATA: Setting(meaning, **more)})


def setting_of(entry: Field[Any]) -> Setting:
    """What was said of the field."""
    found: Setting = entry.metadata[METADATA]
    return found


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting where it stands: section, key, default."""

    section: str
    key: str
    default: Value
    setting: Setting

    @property
    def name(self) -> str:
        """As messages write it: `draft.context`."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{VARIABLE_PREFIX}{self.section}_{self.key}".upper()

    @property
    def flag(self) -> str:
        """The option that sets it."""
        return f"--{self.section}-{self.key}".replace("_", "-")

    @property
    def allowed(self) -> str:
        """What it may be, as the end of "it must be ..."."""
        said = self.setting
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, int | float):
            kind = "a number" if isinstance(self.default, float) else "a whole number"
            unit = f" of {said.unit}" if said.unit else ""
            return f"{kind}{unit}{_bounds(said)}"
        if isinstance(self.default, tuple):
            return f"a list of texts, each {said.form}" if said.form else "a list of texts"
        if said.choices:
            return " or ".join((", ".join(said.choices[:-1]), said.choices[-1]))
        return said.form or ("the path of a file" if said.is_path else "a text")


VARIABLE_PREFIX = "FORERUN_EDGE_"


def entries_of(name: str, section: type[Any]) -> tuple[Entry, ...]:
    """The settings of a section's class, in their order."""
    return tuple(Entry(name, each.name, _default(each), setting_of(each)) for each in fields(section))


def _default(entry: Field[Any]) -> Value:
    found: Any = entry.default
    value: Value = found
    return value


class InvalidValue(UserError):
    """A value that its setting cannot have. `key` is the setting's, in its section."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def check_section(name: str, section: Any) -> None:
    """Raise `InvalidValue` that names the first setting out of bounds and what is allowed."""
    for entry in entries_of(name, type(section)):
        value = getattr(section, entry.key)
        if wrong := _what_is_wrong(entry, value):
            raise InvalidValue(entry.key, f"{entry.name} is {shown(value)}; {wrong}")


def shown(value: object) -> str:
    """A value in a message: short, on one line, and nothing of an address that may be a password."""
    words = repr(value) if not isinstance(value, bool) else str(value).lower()
    if "@" in words:
        return "(not shown: it may hold a password)"
    return words if len(words) <= LONGEST_SHOWN else f"{words[:LONGEST_SHOWN]}..."


LONGEST_SHOWN = 100


def _what_is_wrong(entry: Entry, value: Any) -> str:
    said = entry.setting
    if isinstance(value, float | int) and not isinstance(value, bool) and not _lies_within(said, value):
        return f"it must be {entry.allowed}"
    if said.choices and value not in said.choices:
        return f"it must be {entry.allowed}"
    return said.check(value) if said.check else ""


def _lies_within(said: Setting, value: float) -> bool:
    above = said.low is None or value >= said.low
    return math.isfinite(value) and above and (said.high is None or value <= said.high)


def _bounds(said: Setting) -> str:
    if said.low is not None and said.high is not None:
        return f" in [{_plain(said.low)}, {_plain(said.high)}]"
    return f", {_plain(said.low)} or more" if said.low is not None else ""


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)
