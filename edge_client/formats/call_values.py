"""Reads the text of a template's region as a value, and tool calls in such values.

The parsers and the coercion have the results of transformers 5.23 (`utils/chat_parsing`). Each raises
`ValueError` for a text that it cannot read.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from edge_client.formats.json_text import has_half, json_text, read_json
from edge_client.formats.response_template import PLACEHOLDER, Json, Region, bounded

PARSE_TIME = 0.25
"""Seconds for the pattern of one region's text."""

MAX_ARGUMENTS = 2**24
"""Characters of one region's calls. A transform can repeat the text, and a context has some four million."""

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


def read_calls(
    region: Region, body: str, captures: Mapping[str, str], tools: Mapping[str, Properties]
) -> list[tuple[str, str]]:
    """Return the calls of a region's whole text: each name, and its arguments as JSON text.

    Raises `ValueError` if the text is no call.
    """
    try:
        value = _shaped(region, PARSERS[region.content](body, region.args), captures)
        calls, size = list[tuple[str, str]](), 0
        for each in value if isinstance(value, list) else [value]:
            calls.append(_call(each, tools))
            size += sum(map(len, calls[-1]))
            if size > MAX_ARGUMENTS:
                raise ValueError("the calls are much longer than their text")
    except RecursionError as error:
        raise ValueError("the value is nested too deeply") from error
    return calls


def _call(value: Any, tools: Mapping[str, Properties]) -> tuple[str, str]:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
        raise ValueError("the value has no name")
    if has_half(name):
        raise ValueError("the name holds half a character")
    if "arguments" not in function and name not in tools:
        raise ValueError("the value has no arguments")
    return name, arguments_text(function.get("arguments"), tools.get(name, {}))


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
            known[reference] = types_of(_referred(reference, root), root, known)
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


def _referred(reference: str, root: Any) -> Any:
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


# Parsers ----------------------------------------------------------------------------------------------------


def _json(text: str, args: Json) -> Any:
    """Read JSON. Its strings may have marks of their own, and its keys no quotes, if `args` say so."""
    pairs, bare_keys = args.get("string_delims", []), args.get("unquoted_keys", False)
    return read_json(_plain_json(text, pairs, bare_keys) if pairs or bare_keys else text)


def _plain_json(text: str, pairs: Sequence[Sequence[str]], bare_keys: bool) -> str:
    """Return JSON with the usual marks around its strings and keys.

    Each part of the text is read once: a mark that has no end from one place on has none later either. For
    quotes this holds because a quote behind one without an end is escaped there, so that both read on alike.
    """
    begins = [re.escape(begin) for begin, _ in pairs]
    starts = re.compile("|".join([*begins, '"', *([BARE_KEY.pattern] if bare_keys else [])]))
    open_pairs, has_strings = [(begin, end) for begin, end in pairs], True
    parts, shown, at = list[str](), 0, 0
    while (start := starts.search(text, at)) is not None:
        at, written = start.start(), ""
        until = at + 1
        for pair in [each for each in open_pairs if text.startswith(each[0], at)]:
            inner = at + len(pair[0])
            if (end := text.find(pair[1], inner)) >= 0:
                written, until = json_text(text[inner:end]), end + len(pair[1])
                break
            open_pairs.remove(pair)
        if not written and has_strings and text[at] == '"':
            if (string := STRING.match(text, at)) is not None:
                written, until = string[0], string.end()
            has_strings = string is not None
        if not written and bare_keys and (key := BARE_KEY.match(text, at)) is not None:
            written, until = f'"{key[1]}"', key.end()
        if written:
            parts += (text[shown:at], written)
            shown = until
        at = until
    return "".join([*parts, text[shown:]])


def _xml_inline(text: str, args: Json) -> Json:
    """Read tags as values by name.

    A value ends at the first mark of an end, even within a string in JSON: such a notation (Qwen 3.5, GLM)
    has no escapes, and its text does not say whether a value is JSON.
    """
    return {match["key"]: match["value"] or "" for match in _tags(args, text)}


def _tags(args: Json, text: str) -> list[regex.Match[str]]:
    pattern: regex.Pattern[str] = args["tag_pattern"]
    try:
        return bounded(lambda limit: list(pattern.finditer(text, timeout=limit)), PARSE_TIME)
    except (TimeoutError, MemoryError) as error:
        raise ValueError("the tag_pattern takes too long") from error


def is_whole(region: Region, body: str) -> bool:
    """Tell whether a region that the text's end cut off is certainly whole. Tags may be missing in it."""
    if region.content != "xml-inline":
        return region.content == "json"  # which is read to its own end
    tags = _tags(region.args, body)
    ends = [0, *(each.end() for each in tags)]
    starts = [*(each.start() for each in tags), len(body)]
    return bool(tags) and not any(body[a:b].strip() for a, b in zip(ends, starts, strict=True))


PARSERS: dict[str, Callable[[str, Json], Any]] = {"json": _json, "xml-inline": _xml_inline}


# Shapes -----------------------------------------------------------------------------------------------------


def _shaped(region: Region, value: Any, captures: Mapping[str, str]) -> Any:
    """Bring a value into the shape of the region's transform."""
    if region.transform is None:
        return value
    if not region.transform_each:
        return _fill(region.transform, {**captures, "content": value})
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("the value must be a list of objects")
    return [_fill(region.transform, {**captures, **each}) for each in value]


def _fill(shape: Any, scope: Mapping[str, Any]) -> Any:
    match shape:
        case dict():
            return {key: _fill(each, scope) for key, each in shape.items()}
        case list():
            return [_fill(each, scope) for each in shape]
        case str() if match := PLACEHOLDER.fullmatch(shape):
            value: Any = scope
            for key in match[1].split("."):
                if not isinstance(value, Mapping) or key not in value:
                    raise ValueError(f"the value has no {match[1]}")
                value = value[key]
            return value
        case _:
            return shape
