"""Prompts to measure with: those that come with the demo models, or a file as they are published."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import demo_models
from common.errors import UserError
from simulator.documents import read_text

KEYS = ("prompt", "text")
"""Where an object holds its text: HumanEval's `prompt`, our own `text`."""


def read_prompts(path: Path) -> list[str]:
    """The texts of a JSON list or of JSON lines; an entry is a text or an object that has one of `KEYS`.

    Raises `UserError` that names the entry, counted from 1.
    """
    entries = _entries(path, read_text("the file of prompts", path))
    return [_text_of(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]


def add_prompts(parser: argparse.ArgumentParser, count: int) -> None:
    """`--prompts` and `--num-prompts`, for `prompts_from`."""
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="a JSON list of texts, or JSON lines with `prompt`, instead of the bundled ones",
    )
    parser.add_argument(
        "--num-prompts", type=int, default=count, metavar="N", help="the first so many (%(default)s)"
    )


def prompts_from(options: argparse.Namespace, first: int = 0) -> list[str]:
    """Those asked for, without the `first` ones. Raises `UserError`."""
    return some_of(
        read_prompts(options.prompts) if options.prompts else bundled(), options.num_prompts, first
    )


def bundled() -> list[str]:
    """All prompts that come with the demo models."""
    return [entry["text"] for entry in json.loads(demo_models.PROMPTS.read_text(encoding="utf-8"))]


def some_of(texts: Sequence[str], count: int, first: int = 0) -> list[str]:
    """`count` of them without the `first` ones. Raises `UserError` if there are not so many."""
    if first < 0 or count < 1 or first + count > len(texts):
        after = f", {first} of which are left out" if first else ""
        raise UserError(f"--num-prompts is {count}; there are {len(texts)} prompts{after}")
    return list(texts[first : first + count])


def _entries(path: Path, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return _lines(path, text)
    return found if isinstance(found, list) else [found]


def _lines(path: Path, text: str) -> list[Any]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold U+2028, which splitlines would cut at
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise UserError(
                    f"{path}, line {number}: neither a JSON list nor JSON lines ({error})"
                ) from error
    return found


def _text_of(where: str, entry: Any) -> str:
    if isinstance(entry, dict):
        entry = next((entry[key] for key in KEYS if key in entry), None)
    if not isinstance(entry, str) or not entry:
        raise UserError(f"{where}: a text was expected, or an object with a text as {' or '.join(KEYS)}")
    return entry
