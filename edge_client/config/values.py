"""A value's way into its setting's type, and back into TOML."""

from __future__ import annotations

import json
from typing import TypeGuard

from common.errors import UserError
from edge_client.config.setting import Entry, Value, shown

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def from_data(entry: Entry, value: object) -> Value:
    """Of TOML or JSON, which know types. Raises `UserError` if it has another one."""
    if isinstance(entry.default, bool) != isinstance(value, bool):  # in Python a bool is an int, too
        pass
    elif isinstance(entry.default, float) and isinstance(value, int | float):
        return float(value)
    elif isinstance(entry.default, int | str) and isinstance(value, type(entry.default)):
        return value
    elif isinstance(entry.default, tuple) and _holds_texts(value):
        return tuple(value)
    raise UserError(f"{entry.name} is {shown(value)}; it must be {entry.allowed}")


def from_text(entry: Entry, text: str) -> Value:
    """Of a variable or a flag. A list is separated by commas. Raises `UserError` if it cannot be read."""
    default = entry.default
    try:
        if isinstance(default, bool):
            return _truth(text)
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
    except ValueError as error:
        raise UserError(f"{entry.name} is {shown(text)}; it must be {entry.allowed}") from error
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def as_toml(value: Value) -> str:
    """As a file has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(as_toml(each) for each in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _holds_texts(value: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(word)
