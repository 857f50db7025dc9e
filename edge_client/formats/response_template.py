"""Compiles response templates, which say how a model marks reasoning and tool calls in what it writes.

The format is that of transformers 5.23 (`utils/chat_parsing`, `response_template`). All templates are our own
(`families`). A verifier sends none: its patterns could take any time and memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import regex

Json = dict[str, Any]

PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")

LOOKS_AROUND = regex.compile(r"\\[BGKXbmM]|\^|\(\?<[=!]|\(\?\(")

PREFIX_TIME = 0.5
"""Seconds for the search of a prompt's last anchor."""

MAX_TRIES = 20

T = TypeVar("T")


def bounded(search: Callable[[float], T], seconds: float) -> T:
    """Return what a search with this time limit finds. Raises `TimeoutError`.

    `regex` counts the processor time of all threads of the process, such as those of a draft model. So a
    search that ran out of time is repeated until this thread itself has used half of it.
    """
    began = time.thread_time()
    for _ in range(MAX_TRIES):
        try:
            return search(seconds)
        except TimeoutError:
            if time.thread_time() - began > seconds / 2:
                raise
    raise TimeoutError


@dataclass(frozen=True, slots=True)
class Anchor:
    """Holds one beginning or end of a region."""

    pattern: regex.Pattern[str]
    may_grow: bool  # a match at the end of the present text may become another with more text

    @property
    def looks_around(self) -> bool:
        """Tell whether the text before a place other than its beginning may decide whether the pattern begins
        there."""
        return bool(LOOKS_AROUND.search(self.pattern.pattern.replace("[^", "")))


@dataclass(frozen=True, slots=True)
class Region:
    """Holds one field of a template: a kind of text between two anchors.

    Without `open` the region is the text outside all others. Without `close` it reaches to the text's end.
    """

    name: str
    open: Anchor | None
    close: Anchor | None
    content: str  # text, json or xml-inline
    args: Json
    join: str | None  # between the texts of several such regions
    transform: Any  # the shape of the value; None: as parsed
    transform_each: bool  # the value is a list, and each element has this shape


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """Holds a compiled template."""

    start: Anchor  # ends right before the message
    regions: tuple[Region, ...]  # those with an `open`
    outside: Region | None  # the one without; None: such text is dropped

    def prefix(self, prompt: str) -> str:
        """Return the end of a prompt that already belongs to the message; empty without a start anchor.

        Takes up to `PREFIX_TIME` seconds, so call it outside the event loop. A pattern that takes longer
        finds nothing.
        """
        pattern = self.start.pattern
        try:
            ends = bounded(
                lambda limit: [
                    match.end() for match in pattern.finditer(prompt, timeout=limit, concurrent=True)
                ],
                PREFIX_TIME,
            )
        except (TimeoutError, MemoryError):
            return ""
        return prompt[ends[-1] :] if ends else ""


def load_template(given: Json) -> ResponseTemplate:
    """Compile a template. Raises `ValueError`, `KeyError` or `TypeError` for one of another version."""
    return _load(json.dumps(given))


@lru_cache(maxsize=8)
def _load(source: str) -> ResponseTemplate:
    given = json.loads(source)
    start = _anchor(given, "start_anchor")
    if start is None:
        raise ValueError("a response template needs a start anchor")
    regions = [_region(name, field) for name, field in given["fields"].items()]
    outside = next((region for region in regions if region.open is None), None)
    return ResponseTemplate(start, tuple(region for region in regions if region.open is not None), outside)


def _region(name: str, given: Json) -> Region:
    args = given.get("content_args", {})
    if "tag_pattern" in args:
        args = {**args, "tag_pattern": _compiled(args["tag_pattern"])}
    content, join, transform = given.get("content", "text"), given.get("join"), given.get("transform")
    begin, end = _anchor(given, "open"), _anchor(given, "close")
    return Region(name, begin, end, content, args, join, transform, given.get("transform_each", False))


def _anchor(given: Mapping[str, Any], key: str) -> Anchor | None:
    """Read literals under `key`, or a pattern under `key` with `_pattern`."""
    if (pattern := given.get(f"{key}_pattern")) is not None:
        return Anchor(_compiled(pattern), may_grow=True)
    if (literals := given.get(key)) is None:
        return None
    texts = [literals] if isinstance(literals, str) else literals
    longest_first = sorted(set(texts), key=lambda text: (-len(text), text))
    grows = any(a != b and b.startswith(a) for a in texts for b in texts)
    return Anchor(_compiled("|".join(map(regex.escape, longest_first))), grows)


def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.DOTALL, cache_pattern=False)  # `_load` forgets it with the rest
