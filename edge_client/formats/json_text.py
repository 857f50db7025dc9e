"""Reads and writes JSON whose strings and numbers come from a model or from a client.

Python's own reader knows numbers that JSON lacks, and its strings may hold half a surrogate pair, which has
no UTF-8. What is written here has neither, as `JSON.stringify` writes it (ECMA-262, 25.5.2): such a number is
null, and such a half is an escape.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

HALF = re.compile(r"[\ud800-\udfff]")
"""Matches half a surrogate pair. JSON's reader joins two halves in a row."""

REPLACEMENT = "\ufffd"


def has_half(text: str) -> bool:
    """Tell whether a text holds half a surrogate pair, which is no character."""
    return HALF.search(text) is not None


def read_json(text: str) -> Any:
    """Return the value of JSON text. Raises `ValueError`, also for NaN and Infinity, or `RecursionError`."""
    return json.loads(text, parse_constant=_refuse)


def json_text(value: Any, separators: tuple[str, str] | None = None) -> str:
    """Return a value as JSON text that has UTF-8. Raises `RecursionError` for values that are too deep."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    except ValueError:
        text = json.dumps(_mapped(value, str), ensure_ascii=False, separators=separators)
    return HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def well_formed(value: Any) -> Any:
    """Return a JSON value with U+FFFD in place of each half of a pair, and null in place of each number that
    JSON lacks."""
    return _mapped(value, lambda text: HALF.sub(REPLACEMENT, text))


def _mapped(value: Any, mend: Callable[[str], str]) -> Any:
    match value:
        case str():
            return mend(value)
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {mend(str(name)): _mapped(each, mend) for name, each in value.items()}
        case list() | tuple():
            return [_mapped(each, mend) for each in value]
        case _:
            return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
