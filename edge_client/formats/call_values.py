"""Reads the arguments of a tool call that is no plain JSON, and coerces values to the types of their schemas.

Both have the results of transformers 5.23 (`utils/chat_parsing`).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_client.formats.json_text import has_half, json_text, read_json
from edge_client.formats.message import Json
from edge_client.formats.regions import CallForm

STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
BARE_KEY = re.compile(r"(?<=[{,])\s*(\w+)(?=\s*:)")

TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}
"""JSON's types by those of Python."""

NAMES = tuple(TYPES.values())

Properties = Mapping[str, Any]


def properties_of(tools: Sequence[Json]) -> dict[str, Properties]:
    """Return the types of the parameters of each tool as schemas, by its name. Takes time in proportion to
    the tools' size."""
    types = dict[str, Properties]()
    for tool in tools:
        function = tool.get("function", tool)
        types[function["name"]] = {}
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        known = dict[str, list[str]]()
        with contextlib.suppress(RecursionError):  # of references: no value gets another type
            types[function["name"]] = {
                name: {"type": types_of(each, parameters, known)}
                for name, each in (properties if isinstance(properties, dict) else {}).items()
            }
    return types


def read_arguments(form: CallForm, body: str) -> tuple[Json, bool]:
    """Return the arguments of a call that is read as a whole, and whether its text is certainly whole where
    the text's end has cut it off. Raises `ValueError` for a text that cannot be read."""
    if form.tags is not None:
        return _tagged(body, *form.tags)
    assert form.quotes is not None, "other calls are read while they are written"
    try:
        arguments = read_json(_plain_json(body, *form.quotes))
    except RecursionError as error:
        raise ValueError("the value is nested too deeply") from error
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no object")
    return arguments, True


def arguments_text(value: Any, properties: Properties) -> str:
    """Return a call's arguments as JSON text, coerced to the types of their schemas."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            arguments = read_json(value)
        except (ValueError, RecursionError):
            return json_text(value)
        return json_text(arguments) if has_half(value) else value
    if isinstance(value, dict):
        value = {key: coerce(each, properties.get(key)) for key, each in value.items()}
    return json_text(value)


# Coercion ---------------------------------------------------------------------------------------------------


def coerce(value: Any, schema: Any) -> Any:
    """Return a value of the schema's type for the text of one; anything else unchanged."""
    types = types_of(schema)
    if not isinstance(value, str):
        return value
    for kind in types:
        if (read := READERS.get(kind)) is not None:
            try:
                return read(value)
            except (ValueError, RecursionError):
                continue
    return value


def types_of(schema: Any, root: Any = None, known: dict[str, list[str]] | None = None) -> list[str]:
    """Return the JSON types that a schema names, in its order. `root` has what it refers to, and `known` the
    types of references, each of which is followed once."""
    if not isinstance(schema, dict):
        return []
    known = {} if known is None else known
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = []  # as far as it refers to itself
            known[reference] = types_of(referred(reference, root), root, known)
        return known[reference]
    declared, listed = schema.get("type"), schema.get("enum", [schema["const"]] if "const" in schema else [])
    types = [each for each in (declared if isinstance(declared, list) else [declared]) if each in NAMES]
    if not types and isinstance(listed, list):
        types = [TYPES[type(each)] for each in listed]
    for union in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else []:
            types += types_of(choice, root, known)
    return list(dict.fromkeys([*types, "null"] if schema.get("nullable") else types))


def referred(reference: str, root: Any) -> Any:
    """Return what a reference such as `#/$defs/place` means; None if it is not there."""
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, dict) else None
    return root


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"JSON has no {text}")
    return number


def _number(text: str) -> float:
    number = _finite(text)
    return int(number) if number.is_integer() and "." not in text else number


def _one_of(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in choices:
            raise ValueError(text)
        return choices[text]

    return read


def _of_type(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = read_json(text)
        if not isinstance(value, kind):
            raise ValueError(text)
        return value

    return read


_truth = _one_of({"true": True, "1": True, "false": False, "0": False})
_null = _one_of({"null": None, "None": None})

READERS: dict[str, Callable[[str], Any]] = {
    "integer": _whole,
    "number": _number,
    "boolean": lambda text: _truth(text.strip().lower()),
    "null": lambda text: _null(text.strip()),
    "object": _of_type(dict),
    "array": _of_type(list),
}


# Notations --------------------------------------------------------------------------------------------------


def _plain_json(text: str, begin: str, end: str) -> str:
    """Return JSON with the usual marks around its keys, and around strings between `begin` and `end`.

    Each part of the text is read once: a mark that has no end from one place on has none later either. For
    quotes this holds because a quote behind one without an end is escaped there, so that both read on alike.
    """
    starts = re.compile("|".join([re.escape(begin), '"', BARE_KEY.pattern]))
    has_marked = has_strings = True
    parts, shown, at = list[str](), 0, 0
    while (start := starts.search(text, at)) is not None:
        at, written = start.start(), ""
        until = at + 1
        if has_marked and text.startswith(begin, at):
            inner = at + len(begin)
            has_marked = (found := text.find(end, inner)) >= 0
            if has_marked:
                written, until = json_text(text[inner:found]), found + len(end)
        elif has_strings and text[at] == '"':
            string = STRING.match(text, at)
            has_strings = string is not None
            if string is not None:
                written, until = string[0], string.end()
        elif (key := BARE_KEY.match(text, at)) is not None:
            written, until = f'"{key[1]}"', key.end()
        if written:
            parts += (text[shown:at], written)
            shown = until
        at = until
    return "".join([*parts, text[shown:]])


def _tagged(text: str, begin: str, end: str) -> tuple[Json, bool]:
    """Read tags as values by name. Return also whether the text is tags alone, of which there is one.

    A value ends at the first mark of an end, even within a string in JSON: such a notation (Qwen 3.5, GLM)
    has no escapes, and its text does not say whether a value is JSON.
    """
    begins, ends = re.compile(begin), re.compile(end)
    values, between, at = Json(), list[str](), 0
    while (opened := begins.search(text, at)) and (closed := ends.search(text, opened.end())):
        between.append(text[at : opened.start()])
        values[opened["key"]] = text[opened.end() : closed.start()]
        at = closed.end()
    between.append(text[at:])
    return values, bool(values) and not "".join(between).strip()
