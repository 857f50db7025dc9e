"""Loads response templates, which say how a model marks reasoning and tool calls in what it writes.

The format is that of transformers 5.23 (`utils/chat_parsing`, `response_template`). A template comes from a
verifier, so it is untrusted. Its size is bounded here, and the time of its patterns where they are used. But
41 characters of a pattern can compile to any size, and no list of forbidden constructs is complete. So a
process (`main`) with little time and memory loads each template of a verifier first (`read_template`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import regex

from common.child import ChildProcess, addresses, die_first, limit, serve
from common.errors import PeerError

logger = logging.getLogger(__name__)

Json = dict[str, Any]

MAX_FIELDS = 16
MAX_PATTERN = 2048
"""Characters of a pattern. The longest in use have some 200."""

FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
    *("repeats", "join", "optional", "transform", "transform_each"),
}
TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
CONTENTS = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines")

VALUES = ("text", "int", "float", "bool", "json")
"""Contents of a single value within a region's text. None of them has a pattern."""

MAX_DELIMS = 8
"""Pairs of marks around strings. Gemma 4 has one."""

MAX_PLACEHOLDERS = 16
"""Places in a transform. Each repeats a part of the text; those in use have two."""

PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")

LOOKS_AROUND = regex.compile(r"\\[BGKXbmM]|\^|\(\?<[=!]|\(\?\(")

PREFIX_TIME = 0.5
"""Seconds for the search of a prompt's last anchor."""


MAX_TRIES = 20

TRIAL_TIME = 0.5
"""Seconds of a processor to load a verifier's template. The longest in use take 2 ms."""

TRIAL_MEMORY = 8 * 2**20
"""Bytes that it may take. All families' together take 0.2 MB."""

TRIAL_RESIDENT = 64 * 2**20
"""Bytes of the process that loads it, where the system does not let that bound itself."""

TRIAL_PATIENCE = 30.0
"""Seconds on the clock for the same. A machine that takes longer is busy."""

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
    content: str  # one of `CONTENTS`
    args: Json
    join: str | None  # between the texts of several such regions
    transform: Any  # the shape of the value; None: as parsed
    transform_each: bool  # the value is a list, and each element has this shape

    @property
    def strips(self) -> bool:
        """Tell whether white space around the region's text is no part of it."""
        return self.args.get("strip", True) is not False


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """Holds a checked template."""

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
                    each.end() for each in pattern.finditer(prompt, timeout=limit, concurrent=True)
                ],
                PREFIX_TIME,
            )
        except (TimeoutError, MemoryError):
            return ""
        return prompt[ends[-1] :] if ends else ""


def load_template(given: object) -> ResponseTemplate:
    """Check and compile a template that is ours or has passed `read_template`. Raises `PeerError` that says
    what is wrong with it."""
    if not isinstance(given, dict):
        raise _malformed("it must be an object")
    return _load(json.dumps(given))


@lru_cache(maxsize=8)
def read_template(source: str) -> Json | None:
    """Return a verifier's template of JSON text; None without one.

    A malformed one is ignored with a warning, and so is one that costs too much to compile. Starts a process,
    so call it outside the event loop. Raises `CapacityError` if this machine is too busy for that.
    """
    if not source:
        return None
    try:
        _try(source)
        template: Json = json.loads(source)
        load_template(template)
    except (PeerError, ValueError, RecursionError) as error:
        logger.warning("! the verifier's response template is ignored: %s", error)
        return None
    return template


def _try(source: str) -> None:
    """Load a template in a process of its own. Raises `PeerError` if it must not be loaded here."""
    child = ChildProcess(
        "edge_client.formats.response_template", {}, max_line=MAX_ANSWER, purpose="response templates"
    )
    answer = child.ask({"source": source}, TRIAL_PATIENCE, seconds=TRIAL_TIME, memory=TRIAL_RESIDENT)
    if answer is None:
        raise PeerError(f"the response template {child.why or 'ends the process that loads it'}")
    if words := answer["refused"]:
        raise PeerError(str(words))


@lru_cache(maxsize=8)
def _load(source: str) -> ResponseTemplate:
    given = json.loads(source)
    if unknown := sorted(set(given) - TEMPLATE_KEYS):
        raise _malformed(f"its keys {unknown} are unknown")
    if given.get("version", 1) != 1:
        raise _malformed(f"its version is {given['version']!r}; version 1 is supported")
    fields = given.get("fields")
    if not isinstance(fields, dict) or not 0 < len(fields) <= MAX_FIELDS:
        raise _malformed(f"it must have 1 to {MAX_FIELDS} fields")
    start = _anchor("response_template", given, "start_anchor")
    if start is None:
        raise _malformed("it has neither start_anchor nor start_anchor_pattern")
    regions = [_region(name, each) for name, each in fields.items()]
    outside = [each for each in regions if each.open is None]
    if len(outside) > 1:
        raise _malformed(f"more than one field has no open: {', '.join(each.name for each in outside)}")
    opened = tuple(each for each in regions if each.open is not None)
    return ResponseTemplate(start, opened, outside[0] if outside else None)


def _region(name: str, given: object) -> Region:
    if not isinstance(given, dict):
        raise _malformed(f"field {name!r} must be an object")
    if unknown := sorted(set(given) - FIELD_KEYS):
        raise _malformed(f"field {name!r} has unknown keys {unknown}")
    content = given.get("content", "text")
    if content not in CONTENTS:
        raise _malformed(f"field {name!r} has the content {content!r}; allowed are {', '.join(CONTENTS)}")
    args = _args(name, content, given.get("content_args", {}))
    join, transform, each = given.get("join"), given.get("transform"), given.get("transform_each", False)
    if not (join is None or isinstance(join, str)) or (join is not None and not given.get("repeats")):
        raise _malformed(f"field {name!r}: join must be a string, and needs repeats: true")
    if not isinstance(each, bool) or (each and transform is None):
        raise _malformed(f"field {name!r}: transform_each must be a boolean, and needs a transform")
    if (count := _num_placeholders(name, transform)) > MAX_PLACEHOLDERS:
        raise _malformed(
            f"transform of {name!r} has {count} placeholders; at most {MAX_PLACEHOLDERS} are allowed"
        )
    begin, end = _anchor(name, given, "open"), _anchor(name, given, "close")
    return Region(name, begin, end, content, args, join, transform, each)


def _anchor(name: str, given: Mapping[str, Any], key: str) -> Anchor | None:
    """Read literals under `key`, or a pattern under `key` with `_pattern`."""
    literals, pattern = given.get(key), given.get(f"{key}_pattern")
    if literals is not None and pattern is not None:
        raise _malformed(f"{name!r} has both {key} and {key}_pattern")
    if literals is None and pattern is None:
        return None
    if literals is None:
        return Anchor(_compiled(f"{key}_pattern of {name!r}", pattern), may_grow=True)
    texts = [literals] if isinstance(literals, str) else literals
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each for each in texts):
        raise _malformed(f"{key} of {name!r} must be a string, or a list of them, and not empty")
    longest_first = sorted(set(texts), key=lambda each: (-len(each), each))
    grows = any(a != b and b.startswith(a) for a in texts for b in texts)
    return Anchor(_compiled(f"{key} of {name!r}", "|".join(map(regex.escape, longest_first))), grows)


def _compiled(where: str, pattern: object) -> regex.Pattern[str]:
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise _malformed(f"{where} must be a string of at most {MAX_PATTERN} characters")
    try:
        return regex.compile(pattern, regex.DOTALL, cache_pattern=False)  # `_load` forgets it with the rest
    except MemoryError as error:
        raise _malformed(f"{where} is too large when it is compiled") from error
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise _malformed(f"{where} is no pattern: {error}") from error


def _args(name: str, content: str, args: object) -> Json:
    """Check a parser's arguments and return them with their pattern compiled."""
    if not isinstance(args, dict):
        raise _malformed(f"content_args of {name!r} must be an object")
    if content == "xml-inline":
        tags = _compiled(f"tag_pattern of {name!r}", args.get("tag_pattern"))
        if not {"key", "value"} <= set(tags.groupindex):
            raise _malformed(f"tag_pattern of {name!r} needs the groups key and value")
        args = {**args, "tag_pattern": tags}
    if content == "json":
        pairs = args.get("string_delims", [])
        if not isinstance(pairs, list) or len(pairs) > MAX_DELIMS or not all(map(_is_pair, pairs)):
            raise _malformed(f"string_delims of {name!r} must be at most {MAX_DELIMS} pairs of strings")
    if content == "kv-lines" and not all(
        isinstance(args.get(key, "x"), str) and args.get(key, "x") for key in ("line_sep", "kv_sep")
    ):
        raise _malformed(f"line_sep and kv_sep of {name!r} must be strings and not empty")
    inner = args.get("value_parser")
    if inner is not None:
        if not isinstance(inner, dict) or inner.get("name", "text") not in VALUES:
            raise _malformed(f"value_parser of {name!r} must name one of {', '.join(VALUES)}")
        _args(name, inner.get("name", "text"), inner.get("args", {}))
    return args


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(isinstance(each, str) and each for each in value)
    )


def _num_placeholders(name: str, value: Any) -> int:
    """Count the placeholders of a transform. Refuses a string that is neither one nor without any."""
    match value:
        case dict() | list():
            parts = value.values() if isinstance(value, dict) else value
            return sum(_num_placeholders(name, each) for each in parts)
        case str() if PLACEHOLDER.fullmatch(value):
            return 1
        case str() if PLACEHOLDER.search(value):
            raise _malformed(f"transform of {name!r} mixes a placeholder with text: {value!r}")
        case _:
            return 0


def _malformed(why: str) -> PeerError:
    return PeerError(f"the response template is malformed: {why}")


# The process ------------------------------------------------------------------------------------------------

MAX_LINE = 2**20
"""Bytes of a question. A template has 64 KiB, each of which takes six bytes at most."""

MAX_ANSWER = 2**14
MAX_WORDS = 1000  # characters of an answer


def main() -> None:
    """Serve until standard input ends."""
    die_first()
    serve(_begin, MAX_LINE)


def _begin(_: Json) -> Callable[[Json], Json]:
    if present := addresses():
        limit(RLIMIT_AS=present + TRIAL_MEMORY)
    return lambda message: {"refused": _refusal(message["source"])}


def _refusal(source: str) -> str:
    """Return what is wrong with a template; empty if it can be loaded."""
    try:
        load_template(json.loads(source))
    except (PeerError, ValueError, RecursionError, MemoryError) as error:
        return (str(error) or type(error).__name__)[:MAX_WORDS]
    return ""


if __name__ == "__main__":
    main()
