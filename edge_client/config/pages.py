"""What people read about the settings: a commented file to begin with, and the reference tables."""

from __future__ import annotations

import textwrap

from edge_client.config.merge import Loaded
from edge_client.config.schema import ENTRIES, SECTIONS
from edge_client.config.setting import Entry
from edge_client.config.values import as_toml

WIDTH = 100
HEAD = """\
# Configuration of the edge daemon, `forerun edge`. A line that begins with # changes nothing; what stands
# there is the default. `forerun edge config show --origin` tells what holds and why.
"""


def commented_file() -> str:
    """A TOML file that sets nothing and tells everything."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        parts.append(f"\n# {_first_sentence(section)}\n[{name}]\n")
        parts += [_commented(entry) for entry in ENTRIES if entry.section == name]
    return "".join(parts)


def as_toml_file(loaded: Loaded, *, origins: bool) -> str:
    """The whole configuration as a file that would set it; with `origins` a comment on each line."""
    lines = []
    for name in SECTIONS:
        section = getattr(loaded.config, name)
        lines.append(f"[{name}]")
        for entry in ENTRIES:
            if entry.section == name:
                line = f"{entry.key} = {as_toml(getattr(section, entry.key))}"
                lines.append(f"{line}  # {loaded.origins[entry.name]}" if origins else line)
        lines.append("")
    return "\n".join(lines)


def as_json(loaded: Loaded, *, origins: bool) -> dict[str, dict[str, object]]:
    """The same as an object; with `origins` each value is {"value": ..., "layer": ..., "place": ...}."""
    found: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
    for entry in ENTRIES:
        value = getattr(getattr(loaded.config, entry.section), entry.key)
        origin = loaded.origins[entry.name]
        told = {"value": value, "layer": origin.layer, "place": origin.place}
        found[entry.section][entry.key] = told if origins else value
    return found


def reference() -> str:
    """Markdown: a table a section."""
    return "\n".join(_table(name) for name in SECTIONS)


def _table(name: str) -> str:
    lines = [
        f"\n### [{name}]\n",
        f"{_first_sentence(SECTIONS[name])}\n",
        "| key | default | may be | meaning | flag |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(lines + [_row(entry) for entry in ENTRIES if entry.section == name]) + "\n"


def _row(entry: Entry) -> str:
    meaning = entry.setting.meaning + (" ¹" if entry.setting.is_local else "")
    flag = entry.setting.alias or entry.flag
    if isinstance(entry.default, bool):
        flag = f"{flag}, --no-{flag.removeprefix('--')}"
    flags = ", ".join(f"`{each}`" for each in flag.split(", "))
    allowed = entry.allowed.replace("|", "\\|")
    return f"| `{entry.key}` | `{as_toml(entry.default)}` | {allowed} | {meaning} | {flags} |"


def _commented(entry: Entry) -> str:
    """Its meaning, what it may be, and its default, all as comments."""
    words = f"{entry.setting.meaning}. Allowed: {entry.allowed}."
    lines = textwrap.wrap(words[:1].upper() + words[1:], WIDTH)
    return "\n" + "".join(f"# {line}\n" for line in lines) + f"#{entry.key} = {as_toml(entry.default)}\n"


def _first_sentence(section: type[object]) -> str:
    return (section.__doc__ or "").partition(".")[0] + "."
