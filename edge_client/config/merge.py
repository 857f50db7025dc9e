"""Layers of settings on each other: what holds in the end, and where each value came from.

    built in  <  fleet  <  files, in their order  <  environment  <  flags

What is set on the device, in a file already, beats what the fleet says: a person before a machine can pin a
setting, and a fleet only moves what nobody there cared about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from common.errors import UserError
from edge_client.config.schema import BY_NAME, ENTRIES, LOCAL_ONLY, SECTIONS, EdgeConfig
from edge_client.config.setting import VARIABLE_PREFIX, Entry, InvalidValue, Value
from edge_client.config.toml_file import TomlFile, read_toml
from edge_client.config.values import from_data, from_text

DEFAULT, FLEET, FILE, ENVIRONMENT, FLAG = "default", "fleet", "file", "environment", "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    layer: str  # one of the five above
    place: str = ""  # FILE:LINE, a variable, a flag, or the fleet's own words

    def __str__(self) -> str:
        return self.place if self.layer in (FILE, ENVIRONMENT, FLAG) else f"{self.layer} {self.place}".strip()


@dataclass(frozen=True, slots=True)
class Overlay:
    """Settings that the fleet sends, their signature checked by who received them."""

    name: str  # told as their origin, for example "revision 7"
    values: Mapping[str, object]  # section -> key -> value, typed as in TOML


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, and the origin of each setting by its name (`draft.context`)."""

    config: EdgeConfig
    origins: Mapping[str, Origin]


Raw = TypeVar("Raw")

Layer = dict[str, tuple[Value, Origin]]
"""From a setting's name to a value and its origin."""


def load_config(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    files: Sequence[Path],
    fleet: Overlay | None = None,
) -> Loaded:
    """The configuration of all layers.

    Args: flags, by names of settings (`flags_from`); environment, of which `FORERUN_EDGE_SECTION_KEY` are
    read and all others ignored; files, read in this order, each over those before it; fleet, its overlay.

    Raises `UserError` that says where the value stands, what it is and what is allowed: for a file that
    cannot be read, an unknown section, key or variable, a wrong type, a value out of range, and settings that
    contradict each other; and if the fleet sets what only the device may.
    """
    merged: Layer = {entry.name: (entry.default, Origin(DEFAULT)) for entry in ENTRIES}
    if fleet is not None:
        merged |= _of_fleet(fleet)
    for path in files:
        merged |= _of_file(read_toml(path))
    merged |= _of_environment(environment)
    merged |= _of_flags(flags)
    return Loaded(_build(_at_home(merged)), {name: origin for name, (_, origin) in merged.items()})


# the layers -------------------------------------------------------------------------------------------------


def _of_file(file: TomlFile) -> Layer:
    layer = _of_tables(file.values, lambda section, key: Origin(FILE, file.place(section, key)))
    for name, (value, origin) in layer.items():
        layer[name] = (_beside(file.path, BY_NAME[name], value), origin)
    return layer


def _of_fleet(fleet: Overlay) -> Layer:
    layer = _of_tables(fleet.values, lambda *_: Origin(FLEET, fleet.name))
    if forbidden := sorted(LOCAL_ONLY & layer.keys()):
        raise UserError(
            f"{Origin(FLEET, fleet.name)}: {', '.join(forbidden)} can be set on the device only; "
            "take it out of the fleet's configuration"
        )
    return layer


def _of_tables(tables: Mapping[str, object], origin_of: Callable[[str, str], Origin]) -> Layer:
    layer: Layer = {}
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, Mapping):
            raise UserError(f"{origin_of(section, '')}: {_no_section(section)}")
        for key, value in table.items():
            origin = origin_of(section, key)
            entry = _known(origin, section, key)
            layer[entry.name] = (_at(origin, from_data, entry, value), origin)
    return layer


def _of_environment(environment: Mapping[str, str]) -> Layer:
    known = {entry.variable: entry for entry in ENTRIES}
    layer: Layer = {}
    for name in sorted(each for each in environment if each.startswith(VARIABLE_PREFIX)):
        if name not in known:
            raise UserError(f"the environment variable {name} is no setting{_meant(name, known)}")
        entry, text, origin = known[name], environment[name], Origin(ENVIRONMENT, name)
        layer[entry.name] = (_at(origin, from_text, entry, text), origin)
    return layer


def _of_flags(flags: Mapping[str, object]) -> Layer:
    layer: Layer = {}
    for name, given in flags.items():
        entry = BY_NAME[name]
        origin = Origin(FLAG, entry.setting.alias or entry.flag)
        layer[name] = (_at(origin, _of_flag, entry, given), origin)
    return layer


def _of_flag(entry: Entry, given: object) -> Value:
    """A text, several of them for a list, or a value that is typed already."""
    if isinstance(given, str):
        return from_text(entry, given)
    if isinstance(given, list | tuple) and isinstance(entry.default, tuple):
        return from_text(entry, ",".join(str(each) for each in given))
    return from_data(entry, given)


# the whole --------------------------------------------------------------------------------------------------


def _build(merged: Layer) -> EdgeConfig:
    """Raises `UserError` that says which place is to blame, if one is."""
    sections = {}
    for name, section in SECTIONS.items():
        values = {entry.key: merged[entry.name][0] for entry in ENTRIES if entry.section == name}
        try:
            sections[name] = section(**values)
        except InvalidValue as error:
            raise UserError(f"{merged[f'{name}.{error.key}'][1]}: {error}") from error
    return EdgeConfig(**sections)


def _at(origin: Origin, convert: Callable[[Entry, Raw], Value], entry: Entry, raw: Raw) -> Value:
    """The converted value; what is wrong with it is told with its place."""
    try:
        return convert(entry, raw)
    except UserError as error:
        raise UserError(f"{origin}: {error}") from error


def _beside(file: Path, entry: Entry, value: Value) -> Value:
    """A relative path in a file is meant from the file's folder, wherever the daemon is started."""
    if not entry.setting.is_path or not isinstance(value, str) or not value or "://" in value:
        return value
    return value if value.startswith("~") else str(file.absolute().parent / value)


def _at_home(merged: Layer) -> Layer:
    """With ~ of paths as the home that it stands for."""
    expanded = dict(merged)
    for name, (value, origin) in merged.items():
        if BY_NAME[name].setting.is_path and isinstance(value, str) and value.startswith("~"):
            expanded[name] = (os.path.expanduser(value), origin)
    return expanded


def _known(origin: Origin, section: str, key: str) -> Entry:
    entry = BY_NAME.get(f"{section}.{key}")
    if entry is None:
        keys = [each.key for each in ENTRIES if each.section == section]
        raise UserError(f"{origin}: [{section}] has no setting {key!r}{_meant(key, keys)}")
    return entry


def _no_section(section: str) -> str:
    if section in SECTIONS:
        return f"{section!r} must be a table: write [{section}]"
    if places := [entry.section for entry in ENTRIES if entry.key == section]:
        return f"{section!r} stands outside its section; did you mean [{places[0]}]?"
    return f"there is no section {section!r}{_meant(section, SECTIONS)}"


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}" if len(name) < LONGEST_NAME else ""


LONGEST_NAME = 60
