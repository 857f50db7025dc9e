"""Present the settings as a commented file, and as the whole configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from common.config.merge import Loaded
from common.config.setting import Config, Entry, Schema, Value, as_toml

WIDTH = 100


def commented_file(schema: Schema[Config], head: str) -> str:
    """Return a TOML file after `head` that sets nothing and describes every setting."""
    parts = [head]
    for name, section in schema.sections.items():
        parts.append(f"\n# {_first_sentence(section)}\n[{name}]\n")
        parts += [_commented(entry) for entry in schema.of(name)]
    return "".join(parts)


def as_toml_file(schema: Schema[Config], loaded: Loaded[Config], *, origins: bool) -> str:
    """Return a file that sets the whole configuration; `origins` adds a comment to each line.

    Variants have only the settings that differ from the configuration itself.
    """
    lines = []

    def add(entries: Iterable[Entry], config: Any) -> None:
        for section, group in groupby(entries, lambda entry: entry.section):
            lines.append(f"[{section}]")
            for entry in group:
                line = _line(entry, _value(config, entry))
                lines.append(f"{line}  # {loaded.origins[entry.name]}" if origins else line)
            lines.append("")

    add(schema.entries, loaded.config)
    for name, config in _variants(schema, loaded).items():
        own = _own(schema, loaded, name)
        lines += [] if own else [f"[{schema.variants}.{name}]", ""]
        add(own, config)
    return "\n".join(lines)


def as_json(schema: Schema[Config], loaded: Loaded[Config], *, origins: bool) -> dict[str, dict[str, Any]]:
    """Return the configuration as an object; `origins` gives each value its layer and place.

    Variants have only the settings that differ from the configuration itself.
    """

    def told(entries: Iterable[Entry], config: Any) -> dict[str, dict[str, Any]]:
        sections = dict[str, dict[str, Any]]()
        for entry in entries:
            value, origin = _value(config, entry), loaded.origins[entry.name]
            one = {"value": value, "layer": origin.layer, "place": origin.place} if origins else value
            sections.setdefault(entry.section.rpartition(".")[2], {})[entry.field] = one
        return sections

    variants = _variants(schema, loaded)
    variants_told = {name: told(_own(schema, loaded, name), config) for name, config in variants.items()}
    return told(schema.entries, loaded.config) | ({schema.variants: variants_told} if variants_told else {})


def _variants(schema: Schema[Config], loaded: Loaded[Config]) -> Mapping[str, Config]:
    return getattr(loaded.config, schema.variants) if schema.variants else {}


def _own(schema: Schema[Config], loaded: Loaded[Config], name: str) -> list[Entry]:
    """Return the settings that this variant has of its own."""
    return [entry for entry in schema.in_variant(name) if entry.name in loaded.origins]


def _line(entry: Entry, value: Value) -> str:
    if value is None and not entry.setting.unset:
        return f"# {entry.field} is not set"
    return f"{entry.field} = {as_toml(entry.setting.unset if value is None else value)}"


def _value(config: Any, entry: Entry) -> Any:
    return getattr(getattr(config, entry.section.rpartition(".")[2]), entry.field)


def _commented(entry: Entry) -> str:
    words = f"{entry.setting.meaning}. Allowed: {entry.allowed}."
    lines = textwrap.wrap(words[:1].upper() + words[1:], WIDTH)
    return "\n" + "".join(f"# {line}\n" for line in lines) + f"#{_line(entry, entry.default)}\n"


def _first_sentence(section: type[object]) -> str:
    return (section.__doc__ or "").partition(".")[0] + "."
