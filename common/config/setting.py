"""Define one setting: meaning, unit, allowed values, and conversion from and to text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from common.errors import UserError

Value = str | int | float | bool | Path | tuple[str, ...] | None
"""What a setting can hold. Its annotation says which; `None` is for one that may be left unset."""

Check = Callable[[Any], str]
"""Returns a value's fault as the rest of a sentence ("it must ..."), or an empty text."""

METADATA = "setting"
REQUIRED: Any = MISSING
"""The default of a command's option that must be given."""

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
LONGEST_SHOWN = 100
LOG_LEVELS, LOG_FORMATS = ("debug", "info", "warning", "error"), ("text", "json")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting describes a field once, for files, variables, options of commands and pages."""

    meaning: str  # what it is and why one would change it, without a full stop
    metavar: str = ""  # what stands for the value in a command's help; empty: by its type
    unit: str = ""  # of a number
    low: float | None = None  # the smallest value
    above: float | None = None  # in place of `low`: values must exceed it
    high: float | None = None  # the greatest value; infinite: infinity is one, too
    choices: tuple[str, ...] = ()  # all that a text may be, if it may not be anything
    check: Check | None = None  # what bounds and choices cannot say
    needs: Mapping[str, str] = field(default_factory=dict)  # settings of its section beside it, and why
    excludes: Mapping[str, str] = field(default_factory=dict)  # settings of its section, and why
    form: str = ""  # what a text or an entry of a list looks like, for help and messages
    alias: str = ""  # a short flag beside the one that follows from the name
    short: str = ""  # a flag of one letter, which pages and messages do not name
    flag: str = ""  # of a command's own option, where it does not follow from the name
    group: str = ""  # of a command's own option: the title of its group in the help
    is_argument: bool = False  # of a command: it has a place and no name
    nargs: str = ""  # of a command: how many values follow, as argparse's
    read: Callable[[str], Any] | None = None  # of a command: reads a text, where its type does not say how
    unset: str = ""  # the word that stands for None
    alone: str | None = None  # what the flag without a value stands for
    is_path: bool = False  # of a file: in a file's own folder unless it is absolute
    is_common: bool = False  # its flag is in the first group of a command's help
    has_flag: bool = True  # false: files and variables alone set it


def setting(default: Any, meaning: str, metavar: str = "", **more: Any) -> Any:
    """Return a dataclass field with its `Setting`."""
    return field(default=default, metadata={METADATA: Setting(meaning, metavar, **more)})


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry is a setting with its field, type and default; in a schema it has a section and a flag,
    too."""

    field: str
    kind: type[Any]  # str, int, float, bool, Path or tuple
    default: Value
    setting: Setting
    part: type[Any] = str  # of a tuple: str, int, float or Path
    section: str = ""
    flag: str = ""  # the option that sets it; empty: none
    variable: str = ""  # the environment variable that sets it

    @property
    def name(self) -> str:
        """Return the name in messages: `draft.context`, or of a command's own option `--context`."""
        return f"{self.section}.{self.field}" if self.section else self.flag or self.field

    @property
    def flags(self) -> tuple[str, ...]:
        """Return all options that set the entry, the shortest first."""
        return tuple(dict.fromkeys(each for each in (self.setting.alias, self.flag) if each))

    @property
    def allowed(self) -> str:
        """Return the allowed values as the end of "it must be ..."."""
        return f"{self.setting.unset} or {self._allowed}" if self.setting.unset else self._allowed

    @property
    def _allowed(self) -> str:
        said = self.setting
        if self.kind is bool:
            return "true or false"
        if self.kind in (int, float):
            kind = "a number" if self.kind is float else "a whole number"
            unit = f" of {said.unit}" if said.unit else ""
            return f"{kind}{unit}{_bounds(said)}"
        if self.kind is tuple:
            return f"a list of texts, each {said.form}" if said.form else "a list of texts"
        if said.choices:
            return " or ".join((", ".join(said.choices[:-1]), said.choices[-1]))
        return said.form or ("the path of a file" if said.is_path else "a text")


@cache
def entries_of(section: type[Any]) -> tuple[Entry, ...]:
    """Return the settings of a section's class in order; other fields are not settings."""
    kinds = get_type_hints(section)
    return tuple(_entry(each, kinds[each.name]) for each in fields(section) if METADATA in each.metadata)


def _entry(declared: Field[Any], annotation: Any) -> Entry:
    kind: Any = get_args(annotation)[0] if get_origin(annotation) is UnionType else annotation
    part = get_args(kind)[0] if get_origin(kind) is tuple else str
    default: Value = declared.default  # type: ignore[assignment]  # typed as the field's own
    return Entry(declared.name, get_origin(kind) or kind, default, declared.metadata[METADATA], part)


# Sections --------------------------------------------------------------------------------------------------


class InvalidValue(UserError):
    """The value is not allowed; `key` names the setting in its section."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def check_section(section: Any) -> None:
    """Raise `InvalidValue` that names the first setting out of bounds, or at odds with another one."""
    entries = {entry.field: entry for entry in entries_of(type(section))}  # type: ignore[arg-type]  # hashable
    values = {name: getattr(section, name) for name in entries}
    for name, entry in entries.items():
        if values[name] is not None and (wrong := what_is_wrong(entry, values[name])):
            raise InvalidValue(name, f"{name} is {shown(values[name])}; {wrong}")
    given = [name for name, entry in entries.items() if _is_given(entry, values[name])]
    for name in given:
        said = entries[name].setting
        for other, why in said.needs.items():
            if other not in given:
                raise InvalidValue(name, f"{name} needs {other}{why and f': {why}'}; give both")
        for other, why in said.excludes.items():
            if other in given:
                words = f"{name} and {other} exclude each other{why and f': {why}'}; leave one of them out"
                raise InvalidValue(name, words)


def _is_given(entry: Entry, value: Any) -> bool:
    """Tell whether a setting is more than empty, off or none."""
    alone = entry.setting.alone
    return bool(value) or (alone is not None and value == alone)


def shown(value: object) -> str:
    """Show a value in a message: short, on one line, and without an address that may hold a password."""
    words = str(value).lower() if isinstance(value, bool) else repr(value)
    if "@" in words:
        return "(not shown: it may hold a password)"
    return words if len(words) <= LONGEST_SHOWN else f"{words[:LONGEST_SHOWN]}..."


def what_is_wrong(entry: Entry, value: Any) -> str:
    """Return a value's fault as the rest of a sentence, or an empty text."""
    said = entry.setting
    if entry.kind in (int, float) and not _lies_within(said, value):
        return f"it must be {entry.allowed}"
    if said.choices and value not in said.choices:
        return f"it must be {entry.allowed}"
    return said.check(value) if said.check else ""


def _lies_within(said: Setting, value: float) -> bool:
    if said.above is not None and not value > said.above:
        return False
    if said.low is not None and not value >= said.low:
        return False
    if said.high is not None:
        return value <= said.high
    return isinstance(value, int) or math.isfinite(value)


def _bounds(said: Setting) -> str:
    high = None if said.high == math.inf else said.high
    if said.above is not None:
        return f" above {plain(said.above)}" + (f", {plain(high)} at most" if high is not None else "")
    if said.low is not None and high is not None:
        return f" in [{plain(said.low)}, {plain(high)}]"
    return f", {plain(said.low)} or more" if said.low is not None else ""


def plain(number: float) -> str:
    """Write a number without needless digits."""
    return str(int(number)) if float(number).is_integer() else str(number)


# The schema ------------------------------------------------------------------------------------------------

Config = TypeVar("Config")


@dataclass(frozen=True)  # no slots: what follows from the class is kept in the instance
class Schema(Generic[Config]):
    """A schema has all settings of a program; `make` is a frozen dataclass of sections with defaults.

    The default of a setting is its value in `make()`. In a flat schema no key stands twice: its flags are
    `--key` and its variables PREFIX_KEY, in place of `--section-key` and PREFIX_SECTION_KEY.

    A schema may have named variants: whole configurations in the field `variants` of `make`, by name. Tables
    [VARIANTS.NAME.SECTION] of files set the sections `varied`; all else is as in the configuration itself.
    """

    make: type[Config]
    prefix: str  # of the environment variables
    is_flat: bool = False
    fleet_may_set: frozenset[str] = frozenset()  # names of settings
    variants: str = ""  # the field and the table of variants; empty: there are none
    varied: tuple[str, ...] = ()  # sections

    @cached_property
    def sections(self) -> dict[str, type[Any]]:
        """Return the classes of the sections by their names in a file."""
        defaults = self.make()
        names = [each.name for each in fields(self.make) if each.name != self.variants]  # type: ignore[arg-type]
        return {name: type(getattr(defaults, name)) for name in names}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Return every setting in the order of the file."""
        return tuple(self._entries())

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    def of(self, section: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.section == section)

    def in_variant(self, name: str) -> tuple[Entry, ...]:
        """Return the settings that a variant may have of its own: `pairs.coder.draft.context`."""
        prefix = f"{self.variants}.{name}."
        return tuple(
            replace(entry, section=prefix + entry.section)
            for entry in self.entries
            if entry.section in self.varied
        )

    def _entries(self) -> Iterator[Entry]:
        defaults = self.make()
        for section, kind in self.sections.items():
            for entry in entries_of(kind):  # type: ignore[arg-type]  # as above
                name = entry.field if self.is_flat else f"{section}_{entry.field}"
                yield replace(
                    entry,
                    default=getattr(getattr(defaults, section), entry.field),
                    section=section,
                    flag=f"--{name}".replace("_", "-") if entry.setting.has_flag else "",
                    variable=f"{self.prefix}{name}".upper(),
                )


# Values ----------------------------------------------------------------------------------------------------


def from_data(entry: Entry, value: object) -> Value:
    """Convert a typed value of TOML or JSON. Raises `UserError` for another type."""
    if entry.setting.unset and value == entry.setting.unset:
        return None
    if (entry.kind is bool) != isinstance(value, bool):  # in Python a bool is an int, too
        pass
    elif entry.kind is float and isinstance(value, int | float):
        return _float(entry, value)
    elif entry.kind is tuple and _holds_texts(value):
        return tuple(value)
    elif isinstance(value, str if entry.kind is Path else entry.kind):
        parsed: Value = entry.kind(value)
        return parsed
    raise UserError(f"{entry.name} is {shown(value)}; it must be {entry.allowed}")


def from_text(entry: Entry, text: str) -> Value:
    """Convert the text of a variable or flag; commas separate a list. Raises `UserError`."""
    if entry.kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return read_text(entry, text)


def read_text(entry: Entry, text: str) -> Value:
    """Convert the text of one value. Raises `UserError`."""
    if entry.setting.unset and text == entry.setting.unset:
        return None
    try:
        parsed: Value = _truth(text) if entry.kind is bool else entry.kind(text)
    except ValueError as error:
        raise UserError(f"{entry.name} is {shown(text)}; it must be {entry.allowed}") from error
    return parsed


def as_toml(value: Value) -> str:
    """Write a value as a file has it, and `none` for None."""
    match value:
        case tuple():
            return f"[{', '.join(as_toml(each) for each in value)}]"
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | None:
            return str(value).lower()
    return str(value)


def _float(entry: Entry, value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int that no float holds
        raise UserError(f"{entry.name} is {shown(value)}; it must be {entry.allowed}") from None


def _holds_texts(value: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(word)
