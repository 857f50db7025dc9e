"""Finds out how a model writes tool calls: its chat template writes calls with known names and values.

No table of models is needed, and a template that is new is understood as well. Two notations are known:

    whole     a name, and its arguments as one JSON object: Hermes, Llama, Mistral, harmony, DeepSeek
    by name   each argument with marks around its name and its value: Qwen 3.5, GLM, Gemma 4
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from common.errors import PeerError, UserError
from common.patterns import any_of
from edge_client.formats.message import Json

Render = Callable[[Sequence[Json], Mapping[str, Any]], str]
"""Renders messages with the template's settings, as `ChatTemplate.render`."""

CONTENT, THOUGHT = "probed content", "probed thought"
NAMES, KEYS, TEXTS = ("probe_one", "probe_two"), ("akey", "bkey"), ("atext", "btext")
NUMBER = 73519
IDS = ("probe1id0", "probe2id0")  # nine characters, which Mistral's templates demand
WHOLE = re.compile(r'\{\s*"[ab]key"\s*:\s*"[ab]text"\s*,\s*"[ab]key"\s*:\s*"[ab]text"\s*\}')
WRITTEN_ID = re.compile(rf',\s*"id"\s*:\s*"(?:{"|".join(IDS)})"|\[CALL_ID\](?:{"|".join(IDS)})')
"""An id, within JSON or behind Mistral's mark. The daemon gives ids to calls, so the model writes none."""


@dataclass(frozen=True, slots=True)
class NamedArguments:
    """Holds the notation of arguments one by one. The texts may hold those of control tokens."""

    first: str  # between the call's name and the first argument's name
    between: str  # after a value, before the next name
    last: str  # after the last value
    none: str  # after the call's name if there are no arguments
    text: tuple[str, str]  # before and after a value that is a string
    other: tuple[str, str]  # before and after any other value
    is_json: bool  # objects and arrays are JSON; otherwise they are in this notation, too
    is_sorted: bool  # by name


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Holds the notation of a message with tool calls. The texts may hold those of control tokens."""

    begin: str  # before the first call's name (or its arguments, see `name_first`)
    middle: str  # between name and arguments; empty with `named`
    end: str  # after the last call
    between: str | None  # between one call and the next; None: a message has one call
    named: NamedArguments | None = None  # None: the arguments are one JSON object
    name_first: bool = True
    after_thought: str = ""  # between a thought's end and the call or content
    content_begin: str = ""  # before a content
    arguments_as_text: bool = False  # the template gets arguments as JSON text, not as an object


HERMES = CallSyntax(
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
)
"""The notation of Hermes (Nous Research), for models whose template has none."""


@dataclass(frozen=True, eq=False)
class Controls:
    """Holds the ids of control tokens by their texts, to split a text into them and characters."""

    ids: Mapping[str, int]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join([*([any_of(self.ids)] if self.ids else []), "(?s:.)"]))

    def split(self, text: str) -> list[str]:
        """Return the text's pieces: control tokens, and characters."""
        return self._pattern.findall(text)

    def common_prefix(self, one: str, other: str) -> str:
        """Return the longest common beginning that cuts no control token."""
        return _equal(self.split(one), self.split(other))

    def common_suffix(self, one: str, other: str) -> str:
        """Return the longest common end that cuts no control token."""
        pieces = reversed(self.split(one)), reversed(self.split(other))
        return "".join(reversed([a for a, _ in takewhile(_are_equal, zip(*pieces, strict=False))]))


def _equal(one: Iterable[str], other: Iterable[str]) -> str:
    return "".join(a for a, _ in takewhile(_are_equal, zip(one, other, strict=False)))


def _are_equal(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def find_syntax(render: Render, controls: Controls) -> CallSyntax | None:
    """Return the notation in which a template writes calls, or None if it writes none that is known."""
    for as_text in (False, True):
        try:
            syntax = _Probe(render, controls, as_text).syntax()
        except (PeerError, UserError, _UnknownError):
            continue
        return syntax
    return None


class _UnknownError(Exception):
    """Ends a probe: the template writes no calls, or in no known notation."""


PROBES: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a probe",
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in KEYS}},
        },
    }
    for name in NAMES
]


class _Probe:
    """Reads the notation out of one template's texts."""

    def __init__(self, render: Render, controls: Controls, as_text: bool) -> None:
        self._render = render
        self._controls = controls
        self._as_text = as_text

    def syntax(self) -> CallSyntax:
        """Return the notation. Raises `_UnknownError` or a template's error."""
        texts = dict(zip(reversed(KEYS), reversed(TEXTS), strict=True))  # not in alphabetical order
        one = self._section([texts])
        whole = WHOLE.search(one)
        if whole is None:
            return self._by_name(one, texts)
        name_first = one.find(NAMES[0]) < whole.start()
        begin, middle, end = _cut(one, *((NAMES[0], whole[0]) if name_first else (whole[0], NAMES[0])))
        syntax = CallSyntax(begin, middle, end, None, None, name_first, arguments_as_text=self._as_text)
        if "<|channel|>commentary" in begin + middle:
            return _harmony(syntax)
        return replace(syntax, between=self._between(texts, (whole[0], NAMES[1]) if name_first else None))

    def _by_name(self, one: str, texts: Json) -> CallSyntax:
        is_sorted = 0 < one.find(KEYS[0]) < one.find(KEYS[1])
        order = (0, 1) if is_sorted else (1, 0)
        parts = [part for each in order for part in (KEYS[each], TEXTS[each])]
        begin, first, before_text, after_first, _, after_last = _cut(one, NAMES[0], *parts)
        closing = self._closing(after_first)
        rest = _without(after_last, closing)
        _, _, before_other, after_other = _cut(
            self._section([{KEYS[0]: NUMBER}]), NAMES[0], KEYS[0], str(NUMBER)
        )
        if not after_other.endswith(rest):
            raise _UnknownError
        (_, without) = _cut(self._section([{}]), NAMES[0])
        end = self._controls.common_suffix(rest, without)
        named = NamedArguments(
            first=first,
            between=_without(after_first, closing),
            last=rest.removesuffix(end),
            none=without.removesuffix(end),
            text=(before_text, closing),
            other=(before_other, after_other.removesuffix(rest)),
            is_json=bool(re.search(r'\{"bkey": ?"btext"\}', self._section([{KEYS[0]: {KEYS[1]: TEXTS[1]}}]))),
            is_sorted=is_sorted,
        )
        syntax = CallSyntax(begin, "", end.rstrip(), None, named, arguments_as_text=self._as_text)
        between = self._between(texts, (TEXTS[order[1]], NAMES[1]))
        if between is None or not between.startswith(closing + named.last):
            return syntax
        return replace(syntax, between=between.removeprefix(closing + named.last))

    def _closing(self, text: str) -> str:
        """Return the mark at the beginning of what follows a string: a control token or a tag."""
        space = text[: len(text) - len(text.lstrip())]
        pieces = self._controls.split(text[len(space) :])
        if pieces and pieces[0] in self._controls.ids:
            return space + pieces[0]
        tag = re.match(r"<[^>]+>", text[len(space) :])
        if tag is None:
            raise _UnknownError
        return space + tag[0]

    def _between(self, arguments: Json, parts: tuple[str, str] | None) -> str | None:
        """Return the text between two calls, the end of the first and the name of the second; None if there
        is no such text."""
        try:
            both = self._section([arguments, arguments])
            return _cut(both, NAMES[0], *parts)[2] if parts is not None else None
        except (PeerError, UserError, _UnknownError):
            return None

    def _section(self, calls: Sequence[Json]) -> str:
        """Return the part of a rendered message that holds calls with these arguments."""
        sections = [text for text in (self._alone(calls), self._after_content(calls)) if NAMES[0] in text]
        if not sections:
            raise _UnknownError
        section = min(sections, key=lambda text: text.find(NAMES[0]))
        return WRITTEN_ID.sub("", section)

    def _alone(self, calls: Sequence[Json]) -> str:
        """Return what follows the generation prompt in a message without content."""
        text = self._told(calls, "")
        return self._ended(text[len(self._controls.common_prefix(text, self._prompt)) :]).lstrip()

    @cached_property
    def _prompt(self) -> str:
        return self._render([{"role": "user", "content": "hello"}], {"tools": PROBES})

    def _after_content(self, calls: Sequence[Json]) -> str:
        """Return what follows the content in a message with content."""
        try:
            return self._ended(self._told(calls, CONTENT).partition(CONTENT)[2]).lstrip()
        except (PeerError, UserError):
            return ""

    def _ended(self, text: str) -> str:
        """Return the text without the mark that ends any message."""
        _, mark, end = self._without_calls.partition(CONTENT)
        return (text.removesuffix(self._controls.common_suffix(text, end)) if mark else text).rstrip()

    @cached_property
    def _without_calls(self) -> str:
        return self._told((), CONTENT)

    def _told(self, calls: Sequence[Json], content: str) -> str:
        message: Json = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {
                    "id": identity,
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(arguments) if self._as_text else arguments,
                    },
                }
                for name, identity, arguments in zip(NAMES, IDS, calls, strict=False)
            ]
        settings = {"tools": PROBES, "add_generation_prompt": False}
        return self._render([{"role": "user", "content": "hello"}, message], settings)


def _cut(text: str, *parts: str) -> list[str]:
    """Return the texts before, between and after these parts. Raises `_UnknownError` unless all are there."""
    pieces = list[str]()
    for part in parts:
        before, is_there, text = text.partition(part)
        if not is_there:
            raise _UnknownError
        pieces.append(before)
    return [*pieces, text]


def _without(text: str, beginning: str) -> str:
    if not text.startswith(beginning):
        raise _UnknownError
    return text.removeprefix(beginning)


def _harmony(syntax: CallSyntax) -> CallSyntax:
    """Return the calls of gpt-oss as the model writes them: https://cookbook.openai.com/articles/openai-harmony
    has the recipient behind the channel, and templates write it before."""
    return replace(
        syntax,
        begin="<|channel|>commentary to=functions.",
        middle=" <|constrain|>json<|message|>",
        after_thought="<|start|>assistant",
        content_begin="<|channel|>final<|message|>",
    )
