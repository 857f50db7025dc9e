"""Reads the text of one region as tool calls, while it is written where its syntax allows that."""

from __future__ import annotations

import json
from collections.abc import Mapping

from edge_client.formats.call_values import (
    READERS,
    Properties,
    arguments_text,
    coerce,
    read_arguments,
    types_of,
)
from edge_client.formats.json_scanner import JsonScanner
from edge_client.formats.json_text import has_half, json_text
from edge_client.formats.message import ArgumentsAdded, CallBegun
from edge_client.formats.regions import CallForm

CallPart = CallBegun | ArgumentsAdded


class WholeCall:
    """Reads a call at its region's end."""

    def __init__(self, form: CallForm, captures: Mapping[str, str], tools: Mapping[str, Properties]) -> None:
        self.body = list[str]()
        self._form, self._name = form, captures["name"]
        self._properties = tools.get(self._name, {})

    def finish(self, index: int, is_cut_off: bool) -> list[CallPart]:
        """Return the call with this index. Raises `ValueError` if the text is none, or if it is cut off and
        not certainly whole."""
        arguments, is_whole = read_arguments(self._form, "".join(self.body))
        if is_cut_off and not is_whole:
            raise ValueError("there is no call")
        text = arguments_text(arguments, self._properties)
        return [CallBegun(index, self._name), ArgumentsAdded(index, text)]


class JsonCalls:
    """Reads calls in JSON while they are written. `first` is the index of the first call.

    The arguments are passed on as they are written, except for strings whose schemas want another type. A
    call without a mark needs arguments and a known tool's name, because other objects have names, too.
    """

    def __init__(
        self, form: CallForm, captures: Mapping[str, str], tools: Mapping[str, Properties], first: int
    ) -> None:
        self.index = first - 1  # of the present call
        self.is_begun = False  # the present call has been passed on
        self._form = form
        self._marked_name = None if form.name_key else captures["name"]
        self._is_marked = "unmarked" not in captures
        self._tools = tools
        self._scanner = JsonScanner()
        self._depth = int(form.is_list)  # of a call
        self._inner = self._depth + bool(form.arguments_key)  # of its arguments
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
            self.is_begun, self._name, self._arguments = False, self._marked_name, None
        key = self._scanner.key(began)
        if began == self._inner and self._form.arguments_key in ("", key) and not self.is_begun:
            self._begin_arguments(char)
        elif began == self._depth + 1 and key == self._form.name_key and not self._marked_name:
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
        elif isinstance(value, str) and key == self._form.name_key and not self._name:
            is_name = not has_half(value) if self._is_marked else value in self._tools
            self._name = value if is_name else None
        else:
            self._arguments = text
        if self._name and self._arguments is not None and not self.is_begun:
            self._begin_call(self._name)
            self._add(arguments_text(json.loads(self._arguments), self._properties))

    def _end_call(self) -> bool:
        """End a call without arguments. It must be of a known tool, as other objects have names, too."""
        if not self._is_marked or not self._name or self._name not in self._tools:
            return False
        self._begin_call(self._name)
        self._add("{}")
        return True

    def _begin_call(self, name: str) -> None:
        self.is_begun = True
        self._parts.append(CallBegun(self.index, name))

    def _add(self, text: str) -> None:
        self._parts.append(ArgumentsAdded(self.index, text))
