"""Reads prompts for measurements, from the demo models' folder or from a published file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UnavailableError, UserError
from forerun import demo_pair
from simulator.documents import read_text

KEYS = ("prompt", "text")
"""Keys of an object's text: HumanEval's `prompt`, our own `text`."""


def read_prompts(path: Path) -> list[str]:
    """Return the texts of a JSON list or of JSON lines. An entry is a text or an object with one of `KEYS`.

    Raise `UserError` that names the entry, counted from 1.
    """
    entries = _entries(path, read_text("the file of prompts", path))
    if not entries:
        raise UserError(f"{path} is an empty list of prompts; at least one text was expected")
    return [_text_of(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]


def bundled() -> list[str]:
    """Return all prompts of the demo models. Raise `UnavailableError` outside a clone."""
    if not demo_pair.PROMPTS.exists():
        raise UnavailableError(f"{demo_pair.PROMPTS} is missing; run from a clone, or give your own prompts")
    return [entry["text"] for entry in json.loads(demo_pair.PROMPTS.read_text(encoding="utf-8"))]


def some_of(texts: Sequence[str], count: int) -> list[str]:
    """Return the first `count` texts. Raise `UserError` if there are fewer."""
    if not 1 <= count <= len(texts):
        raise UserError(f"--num-prompts is {count}; there are {len(texts)} prompts")
    return list(texts[:count])


def _entries(path: Path, text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = enumerate(text.split("\n"), 1)  # JSON may hold U+2028, which splitlines would cut at
        return [_parsed(f"{path}, line {number}", line) for number, line in lines if line.strip()]
    return content if isinstance(content, list) else [content]


def _parsed(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: neither a JSON list nor JSON lines ({error})") from error


def _text_of(where: str, entry: Any) -> str:
    if isinstance(entry, dict):
        entry = next((entry[key] for key in KEYS if key in entry), None)
    if not isinstance(entry, str) or not entry:
        raise UserError(f"{where}: a text was expected, or an object with a text as {' or '.join(KEYS)}")
    return entry
