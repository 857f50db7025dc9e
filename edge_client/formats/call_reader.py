"""Reads the text of one region as tool calls, while it is written where its syntax allows that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from edge_client.formats.call_values import (
    READERS,
    Properties,
    arguments_text,
    coerce,
    is_whole,
    read_calls,
    types_of,
)
from edge_client.formats.json_scanner import JsonScanner
from edge_client.formats.json_text import has_half, json_text
from edge_client.formats.message import ArgumentsAdded, CallBegun
from edge_client.formats.response_template import PLACEHOLDER, Region

CallPart = CallBegun | ArgumentsAdded


@dataclass(frozen=True, slots=True)
class JsonShape:
    """Says where a call's name and arguments stand in JSON text."""

    is_list: bool  # a list of calls; else one call
    name: str | None  # known before the text; None: under `name_key`
    name_key: str
    arguments_key: str | None  # None: the call is its arguments
    is_marked: bool = True  # else a call has arguments and a known tool's name: other objects have names, too

    @classmethod
    def of(cls, region: Region, captures: Mapping[str, str]) -> JsonShape | None:
        """Return the shape that the region's transform describes; None if it has another syntax."""
        shape = region.transform.get("function") if isinstance(region.transform, dict) else None
        if region.content != "json" or region.args:
            return None
        if shape == "{content}" and not region.transform_each:
            return cls(False, None, "name", "arguments", is_marked="unmarked" not in captures)
        if not isinstance(shape, dict):
            return None
        name, arguments = (_path(shape.get(key), region, captures) for key in ("name", "arguments"))
        if isinstance(name, str) and isinstance(arguments, tuple) and not region.transform_each:
            return cls(False, name, "", arguments[0] if arguments else None)
        if name and isinstance(name, tuple) and arguments and isinstance(arguments, tuple):
            return cls(region.transform_each, None, name[0], arguments[0])
        return None


def _path(shape: object, region: Region, captures: Mapping[str, str]) -> str | tuple[str, ...] | None:
    """Return a text, or the keys that lead to a value in one call; None for what needs the whole value."""
    match = PLACEHOLDER.fullmatch(shape) if isinstance(shape, str) else None
    if match is None:
        return shape if isinstance(shape, str) else None
    root, *keys = match[1].split(".")
    if region.transform_each:
        return (root,) if not keys and root not in captures else None
    if root == "content" and len(keys) <= 1:
        return tuple(keys)
    return captures.get(root) if not keys else None


class WholeCalls:
    """Reads calls at their region's end."""

    def __init__(self, region: Region, captures: Mapping[str, str], tools: Mapping[str, Properties]) -> None:
        self.body = list[str]()
        self._region, self._captures, self._tools = region, captures, tools

    def finish(self, first: int, is_cut_off: bool) -> list[CallPart]:
        """Return the calls, counted from `first`. Raises `ValueError` if the text is none, or if it is cut
        off and not certainly whole."""
        body = "".join(self.body)
        calls = read_calls(self._region, body, self._captures, self._tools)
        if not calls or (is_cut_off and not is_whole(self._region, body)):
            raise ValueError("there is no call")
        return [
            part
            for index, (name, text) in enumerate(calls, first)
            for part in (CallBegun(index, name), ArgumentsAdded(index, text))
        ]


class JsonCalls:
    """Reads calls in JSON while they are written. `first` is the index of the first call.

    The arguments are passed on as they are written, except for strings whose schemas want another type.
    """

    def __init__(self, shape: JsonShape, tools: Mapping[str, Properties], first: int) -> None:
        self.index = first - 1  # of the present call
        self.is_begun = False  # the present call has been passed on
        self._shape = shape
        self._tools = tools
        self._scanner = JsonScanner()
        self._depth = int(shape.is_list)  # of a call
        self._inner = self._depth + (shape.arguments_key is not None)  # of its arguments
        self._name: str | None = None
        self._arguments: str | None = None  # of a call without a name so far
        self._streams = False  # the arguments are under way and are passed on
        self._kept: list[str] | None = None  # a value that is read at its end
        self._parts = list[CallPart]()

    @property
    def is_whole(self) -> bool:
        """Tell whether the value has ended."""
        return self._scanner.is_whole

    def feed(self, char: str) -> bool:
        """Take the next character. Return False if the text is no call from this character on."""
        if not self._scanner.feed(char) or not self._begin_value(char):
            return False
        if self._kept is not None:
            self._kept.append(char)
        elif self._streams:
            self._add(char)
        return self._end_value()

    def release(self) -> list[CallPart]:
        """Return the parts since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def stop(self) -> None:
        """End the text where it is. The arguments of a begun call end there, too."""
        if self._streams and self._kept is not None:
            self._add("".join(self._kept))

    def _begin_value(self, char: str) -> bool:
        """Act on a value that begins: a call, its name, its arguments, or a string in them."""
        began = self._scanner.began
        if began is None:
            return True
        if began < self._depth:
            return char == "["
        if began == self._depth:
            if char != "{":
                return False
            self.index += 1
            self.is_begun, self._name, self._arguments = False, self._shape.name, None
        key = self._scanner.key(began)
        if began == self._inner and self._shape.arguments_key in (None, key) and not self.is_begun:
            self._begin_arguments(char)
        elif began == self._depth + 1 and key == self._shape.name_key and not self._shape.name:
            self._kept = []
            return char == '"'
        elif began == self._inner + 1 and self._streams and char == '"' and self._is_coerced(key):
            self._kept = []
        return True

    def _begin_arguments(self, char: str) -> None:
        if self._name and char == "{":
            self._begin_call(self._name)
            self._streams = True
        else:
            self._kept = []

    def _is_coerced(self, key: str) -> bool:
        return any(kind in READERS for kind in types_of(self._properties.get(key)))

    @property
    def _properties(self) -> Properties:
        return self._tools.get(self._name or "", {})

    def _end_value(self) -> bool:
        """Act on the values that have ended: a string in a call, its arguments, and the call."""
        ended = self._scanner.ended
        if ended is None:
            return True
        if self._kept is not None and ended <= self._inner + self._streams:
            self._end_kept(ended)
        if ended <= self._inner:
            self._streams = False
        return ended > self._depth or self.is_begun or self._end_call()

    def _end_kept(self, ended: int) -> None:
        assert self._kept is not None, "asked for before"
        text, self._kept = "".join(self._kept), None
        if text[0] not in '"{[':  # a number or a word, which the character behind it has ended
            text = text[:-1]
        value = json.loads(text)
        key = self._scanner.key(self._depth + 1)
        if self._streams:
            coerced = coerce(value, self._properties.get(self._scanner.key(ended)))
            self._add(text if coerced is value else json_text(coerced))
        elif isinstance(value, str) and key == self._shape.name_key and not self._name:
            is_name = not has_half(value) if self._shape.is_marked else value in self._tools
            self._name = value if is_name else None
        else:
            self._arguments = text
        if self._name and self._arguments is not None and not self.is_begun:
            self._begin_call(self._name)
            self._add(arguments_text(json.loads(self._arguments), self._properties))

    def _end_call(self) -> bool:
        """End a call without arguments. It must be of a known tool, as other objects have names, too."""
        if not self._shape.is_marked or not self._name or self._name not in self._tools:
            return False
        self._begin_call(self._name)
        self._add("{}")
        return True

    def _begin_call(self, name: str) -> None:
        self.is_begun = True
        self._parts.append(CallBegun(self.index, name))

    def _add(self, text: str) -> None:
        self._parts.append(ArgumentsAdded(self.index, text))
