"""The settings as options of a command. Only what was given stands in the parsed options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from edge_client.config.schema import BY_NAME, ENTRIES, SECTIONS
from edge_client.config.setting import Entry
from edge_client.config.values import as_toml


def add_flags(parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS)) -> None:
    """One option for each setting of these sections, in a group each."""
    for section in sections:
        group = parser.add_argument_group(f"[{section}]")
        for entry in ENTRIES:
            if entry.section == section:
                _add_flag(group, entry)


def flags_from(options: argparse.Namespace) -> dict[str, object]:
    """The given ones by the names of their settings, for `load_config`."""
    return {name: value for name, value in vars(options).items() if name in BY_NAME}


def _add_flag(group: argparse._ArgumentGroup, entry: Entry) -> None:
    names = [each for each in dict.fromkeys((entry.setting.alias, entry.flag)) if each]
    words = f"{entry.setting.meaning} ({_default(entry)})".replace("%", "%%")
    if isinstance(entry.default, bool):
        group.add_argument(
            *names,
            dest=entry.name,
            default=argparse.SUPPRESS,
            action=argparse.BooleanOptionalAction,
            help=words,
        )
        return
    # Texts: `load_config` reads them as those of the environment, and says what is wrong in the same words.
    action = "append" if isinstance(entry.default, tuple) else "store"
    group.add_argument(
        *names, dest=entry.name, default=argparse.SUPPRESS, action=action, metavar=_metavar(entry), help=words
    )


def _default(entry: Entry) -> str:
    """With its unit; in words where it is empty."""
    if entry.default in ("", ()):
        return "none"
    unit = f" {entry.setting.unit}" if entry.setting.unit else ""
    return as_toml(entry.default) + unit


def _metavar(entry: Entry) -> str:
    if entry.setting.choices:
        return "{" + ",".join(entry.setting.choices) + "}"
    if isinstance(entry.default, int | float):
        return "N"
    if entry.setting.is_path:
        return "FILE"
    return entry.key.rpartition("_")[2].upper()
