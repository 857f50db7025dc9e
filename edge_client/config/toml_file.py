"""A TOML file as a layer of settings, and the line on which a key stands."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

LARGEST = 1 << 20
"""Bytes of a configuration; whoever names a model by mistake is told so at once."""

HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
KEY = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+)["']?\s*=""")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file as it was read."""

    path: Path
    text: str
    values: dict[str, object]

    def place(self, section: str, key: str = "") -> str:
        """FILE:LINE of a key or a section; FILE alone if it is written in a way that is not looked for."""
        line = line_of(self.text, section, key)
        return f"{self.path}:{line}" if line else str(self.path)


def read_toml(path: Path) -> TomlFile:
    """Raises `UserError` that names the file and, if it is no TOML, the line."""
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
    """The number of the line where [section] begins, or where its `key` is set; 0 if none is found."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            current = header[1]
            if current == section and not key:
                return number
        elif (found := KEY.match(line)) and _names(current, found[1], section, key):
            return number
    return 0


def _names(current: str, found: str, section: str, key: str) -> bool:
    """Whether `found = ...` below [current] sets the key; also `section.key = ...` above all sections."""
    if current == section:
        return found == key
    return not current and (found == f"{section}.{key}" if key else found.partition(".")[0] == section)
