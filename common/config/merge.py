"""Merge layers of settings, and record the origin of each value.

    built in  <  fleet  <  files, in their order  <  environment  <  flags

Settings on the device, even in a file, take precedence over the fleet's. So an operator at a machine can pin
a setting, and a fleet changes only the settings that are not pinned.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

from common.config.setting import Config, Entry, InvalidValue, Schema, Value, from_data, from_text
from common.errors import UserError

DEFAULT, FLEET, FILE, ENVIRONMENT, FLAG = "default", "fleet", "file", "environment", "flag"
LARGEST = 1 << 20
"""Most bytes of a configuration; a model named by mistake is refused at once."""

HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]")
KEY = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+)["']?\s*=""")
LONGEST_NAME = 60
VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Matches a variant's name, which stands in a table's header without quotes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An origin says where a value came from."""

    layer: str  # one of the five above
    place: str = ""  # FILE:LINE, a variable, or a flag

    def __str__(self) -> str:
        return self.place or self.layer


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Config]):
    """A loaded configuration has the origin of each setting by its name (`draft.context`)."""

    config: Config
    origins: Mapping[str, Origin]


Raw = TypeVar("Raw")

Layer = dict[str, tuple[Value, Origin]]
"""From a setting's name to a value and its origin."""


def load_config(
    schema: Schema[Config],
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    files: Sequence[Path],
    fleet: Mapping[str, object] | None = None,
) -> Loaded[Config]:
    """Merge all layers into one configuration.

    Args: flags, by names of settings (`flags_from`); environment, of which the variables that begin with the
    schema's prefix are read and all others ignored; files, read in this order, each over those before it;
    fleet, what its document sets, by names of settings.

    Raises `UserError` that says where the value stands, what it is and what is allowed: for a file that
    cannot be read, an unknown section, key or variable, a wrong type, a value out of range, and settings that
    contradict each other; and if the fleet sets what only the device may.
    """
    merged: Layer = {entry.name: (entry.default, Origin(DEFAULT)) for entry in schema.entries}
    merged |= _of_fleet(schema, fleet or {})
    for path in files:
        merged |= _of_file(schema, read_toml(path))
    merged |= _of_environment(schema, environment)
    merged |= _of_flags(schema, flags)
    config = _build(schema, merged)
    return Loaded(
        config, {name: origin for name, (_, origin) in merged.items() if not _is_variant(schema, name)}
    )


# the layers -------------------------------------------------------------------------------------------------


def _of_file(schema: Schema[Config], file: TomlFile) -> Layer:
    """Return a file's settings. Its variants' settings follow, by names such as `pairs.coder.draft.model`."""

    def origin_of(section: str, key: str) -> Origin:
        return Origin(FILE, file.place(section, key))

    tables, variants = _apart(schema, file.values, origin_of)
    entries = schema.by_name
    layer = _of_tables(entries, tuple(schema.sections), tables, origin_of)
    for name, table in variants.items():
        own, prefix = {each.name: each for each in schema.in_variant(name)}, f"{schema.variants}.{name}"
        layer |= _of_tables(own, schema.varied, table, origin_of, f"{prefix}.")
        entries = entries | own
    for name, (value, origin) in layer.items():
        layer[name] = (_beside(file.path, entries[name], value), origin)
    named: Layer = {f"{schema.variants}.{name}": (None, Origin(FILE)) for name in variants}
    return layer | named  # a variant may set nothing


def _apart(
    schema: Schema[Config], values: Mapping[str, object], origin_of: Callable[[str, str], Origin]
) -> tuple[Mapping[str, object], Mapping[str, Mapping[str, object]]]:
    """Return the tables of the configuration itself, and those of each variant by its name."""
    if schema.variants not in values or not schema.variants:
        return values, {}
    rest = dict(values)
    variants = rest.pop(schema.variants)
    if not isinstance(variants, Mapping):
        words = f"{schema.variants!r} must hold tables: write [{schema.variants}.NAME]"
        raise UserError(f"{origin_of(schema.variants, '')}: {words}")
    for name, table in variants.items():
        prefix = f"{schema.variants}.{name}"
        if not VARIANT.fullmatch(name):
            words = "its name must be letters, digits, '_' and '-', 64 at most"
            raise UserError(f"{origin_of(prefix, '')}: [{prefix[:LONGEST_NAME]}]: {words}")
        if not isinstance(table, Mapping):
            raise UserError(f"{origin_of(prefix, '')}: {prefix!r} must be a table: write [{prefix}]")
    return rest, variants


def _of_fleet(schema: Schema[Config], values: Mapping[str, object]) -> Layer:
    if forbidden := sorted(values.keys() - schema.fleet_may_set):
        allowed = ", ".join(sorted(schema.fleet_may_set))
        raise UserError(f"a fleet may not set {', '.join(forbidden)}; it may set {allowed}")
    origin, known = Origin(FLEET), schema.by_name
    return {name: (_at(origin, from_data, known[name], value), origin) for name, value in values.items()}


def _of_tables(
    entries: Mapping[str, Entry],
    sections: Sequence[str],
    tables: Mapping[str, object],
    origin_of: Callable[[str, str], Origin],
    prefix: str = "",
) -> Layer:
    """Return the settings of tables, which are [PREFIX SECTION] for each of these sections."""
    layer: Layer = {}
    for name, table in tables.items():
        section = prefix + name
        if name not in sections or not isinstance(table, Mapping):
            raise UserError(f"{origin_of(section, '')}: {_no_section(entries, sections, name, prefix)}")
        for key, value in table.items():
            origin = origin_of(section, key)
            entry = _known(entries, origin, section, key)
            layer[entry.name] = (_at(origin, from_data, entry, value), origin)
    return layer


def _of_environment(schema: Schema[Config], environment: Mapping[str, str]) -> Layer:
    known = {entry.variable: entry for entry in schema.entries}
    layer: Layer = {}
    for name in sorted(each for each in environment if each.startswith(schema.prefix)):
        if name not in known:
            raise UserError(f"the environment variable {name} is no setting{meant(name, known)}")
        entry, text, origin = known[name], environment[name], Origin(ENVIRONMENT, name)
        layer[entry.name] = (_at(origin, from_text, entry, text), origin)
    return layer


def _of_flags(schema: Schema[Config], flags: Mapping[str, object]) -> Layer:
    layer: Layer = {}
    for name, given in flags.items():
        entry = schema.by_name[name]
        origin = Origin(FLAG, (*entry.flags, name)[0])
        layer[name] = (_at(origin, _of_flag, entry, given), origin)
    return layer


def _of_flag(entry: Entry, given: object) -> Value:
    if isinstance(given, str):
        return from_text(entry, given)
    if isinstance(given, list | tuple) and entry.kind is tuple:
        return from_text(entry, ",".join(str(each) for each in given))
    return from_data(entry, given)


# the whole --------------------------------------------------------------------------------------------------


def _build(schema: Schema[Config], merged: Layer) -> Config:
    sections = {name: _section(schema, name, merged) for name in schema.sections}
    if not schema.variants:
        return schema.make(**sections)
    variants = dict[str, Config]()
    for prefix in (name for name in merged if _is_variant(schema, name)):
        own = {each: _section(schema, each, merged, f"{prefix}.") for each in schema.varied}
        variants[prefix.rpartition(".")[2]] = schema.make(**sections | own)
    return schema.make(**sections, **{schema.variants: variants})


def _is_variant(schema: Schema[Any], name: str) -> bool:
    return name.rpartition(".")[0] == schema.variants


def _section(schema: Schema[Any], name: str, merged: Layer, prefix: str = "") -> Any:
    """Build a section, of the variant with this prefix if there is one."""

    def value_of(key: str) -> tuple[Value, Origin]:
        return merged.get(f"{prefix}{name}.{key}") or merged[f"{name}.{key}"]

    values = {entry.field: _at_home(entry, value_of(entry.field)[0]) for entry in schema.of(name)}
    try:
        return schema.sections[name](**values)
    except InvalidValue as error:
        raise UserError(f"{value_of(error.key)[1]}: {prefix}{name}.{error}") from error
    except UserError as error:
        raise (UserError(f"[{prefix}{name}]: {error}") if prefix else error) from error


def _at(origin: Origin, convert: Callable[[Entry, Raw], Value], entry: Entry, raw: Raw) -> Value:
    try:
        return convert(entry, raw)
    except UserError as error:
        raise UserError(f"{origin}: {error}") from error


def _beside(file: Path, entry: Entry, value: Value) -> Value:
    """Resolve a relative path in a file against the file's folder."""
    if not entry.setting.is_path or not value or "://" in str(value) or str(value).startswith("~"):
        return value
    path: Value = entry.kind(file.absolute().parent / str(value))
    return path


def _at_home(entry: Entry, value: Value) -> Value:
    if not entry.setting.is_path or not str(value).startswith("~"):
        return value
    path: Value = entry.kind(os.path.expanduser(str(value)))
    return path


def _known(entries: Mapping[str, Entry], origin: Origin, section: str, key: str) -> Entry:
    entry = entries.get(f"{section}.{key}")
    if entry is None:
        keys = [each.field for each in entries.values() if each.section == section]
        raise UserError(f"{origin}: [{section}] has no setting {key!r}{meant(key, keys)}")
    return entry


def _no_section(entries: Mapping[str, Entry], sections: Sequence[str], name: str, prefix: str) -> str:
    if name in sections:
        return f"{prefix + name!r} must be a table: write [{prefix}{name}]"
    if places := [entry.section for entry in entries.values() if entry.field == name]:
        return f"{prefix + name!r} stands outside its section; did you mean [{places[0]}]?"
    return f"there is no section {prefix + name!r}{meant(name, sections)}"


def meant(name: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown name with the known name that is closest, or with all of them."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}" if len(name) < LONGEST_NAME else ""


# files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A configuration file has its path, its text and its values."""

    path: Path
    text: str
    values: dict[str, object]

    def place(self, section: str, key: str = "") -> str:
        """Return FILE:LINE of a key or a section, or FILE if the line is not found."""
        line = line_of(self.text, section, key)
        return f"{self.path}:{line}" if line else str(self.path)


def read_toml(path: Path) -> TomlFile:
    """Read a file. Raises `UserError` that names the file and, if it is not TOML, the line."""
    try:
        data = path.read_bytes() if path.stat().st_size <= LARGEST else None
    except OSError as error:
        raise UserError(f"the configuration {path} cannot be read: {error.strerror or error}") from error
    if data is None:
        raise UserError(f"{path} is too large for a configuration; name a TOML file")
    try:
        text = data.decode("utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # TOML's errors and UTF-8's
        raise UserError(f"the configuration {path} is not TOML in UTF-8: {error}") from error


def line_of(text: str, section: str, key: str = "") -> int:
    """Return the number of the line where [section] begins or its `key` is set; 0 if there is none."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            current = header[1]
            if current == section and not key:
                return number
        elif match := KEY.match(line):
            path = f"{current}.{match[1]}".removeprefix(".")
            if path == f"{section}.{key}" if key else f"{path}.".startswith(f"{section}."):
                return number
    return 0
