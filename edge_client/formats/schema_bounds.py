"""Bounds what a JSON schema leaves without end: the digits of a number, and formats that hold digits.

JSON sets no limit, and a model that is held to a schema may write digits until its tokens are used up.
llama.cpp's grammars have 16 digits before the point and 16 behind it. A bound of the schema's own counts.
"""

from __future__ import annotations

import json
from typing import Any

LARGEST = 10**15
"""Whole numbers up to here are exact in double precision, digits behind the point aside."""

STEP = 1e-9
"""Nine digits behind the point. llguidance takes no smaller step beside `LARGEST`, and writes no exponents
where a number has bounds."""

LONGEST = {"date-time": 40, "time": 32, "duration": 64}
"""Characters of the formats whose digits may go on (RFC 3339)."""

BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
WITHIN = (
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "contains",
    "unevaluatedProperties",
)
OF_ALL = ("anyOf", "oneOf", "allOf", "if", "then", "else")
"""Keywords that hold schemas: by name, and for all else one or a list."""

TYPES = ["null", "boolean", "string", "number", "array", "object"]
OWN = {"type", "properties", "required"}
NAME = "forerun-any"
ANY = {"$ref": f"#/$defs/{NAME}"}
"""Refers to any value whose numbers end. `bounded` defines it."""


def bounded(schema: dict[str, Any], *, is_open: bool = True) -> dict[str, Any]:
    """Return a schema whose numbers and times end; with `is_open` also those in values that it leaves open.

    llguidance cannot compare such a value with another schema for it, and refuses what needs that.
    """
    told: dict[str, Any] = _bounded(schema, not is_open)
    if json.dumps(ANY) not in json.dumps(told):
        return told
    own = told.get("$defs")
    own = own if isinstance(own, dict) else {}
    return {**told, "$defs": {**own, NAME: _bounded({"type": TYPES}, False)}}


def _bounded(schema: Any, is_part: bool) -> Any:
    """Return a schema within another one. `is_part`: another one may hold for the same value."""
    match schema:
        case list():
            return [_bounded(each, is_part) for each in schema]
        case dict() if schema or is_part:
            combined = schema.keys() & {*OF_ALL, "$ref", "not"}
            within = is_part or bool(combined - {"anyOf", "oneOf"} or (combined and schema.keys() & OWN))
            told = {name: _inner(name, value, is_part, within) for name, value in schema.items()}
            if is_part or combined:
                return told | _bounds(told)
            told = told if schema.keys() & {"type", "enum", "const"} else {"type": TYPES, **told}
            return told | _bounds(told) | _open(told)
        case dict() | True if not is_part:
            return ANY
        case _:
            return schema


def _inner(keyword: str, value: Any, is_part: bool, within: bool) -> Any:
    if keyword in BY_NAME and isinstance(value, dict):
        return {name: _bounded(each, is_part) for name, each in value.items()}
    return _bounded(value, within if keyword in OF_ALL else is_part) if keyword in WITHIN + OF_ALL else value


def _open(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a schema leaves open of lists and objects."""
    parts = (("array", "items"), ("object", "additionalProperties"))
    return {name: ANY for kind, name in parts if kind in _types(schema) and name not in schema}


def _types(schema: dict[str, Any]) -> list[Any]:
    types = schema.get("type")
    return types if isinstance(types, list) else [types]


def _bounds(schema: dict[str, Any]) -> dict[str, Any]:
    types, form = _types(schema), schema.get("format")
    bounds = dict[str, Any]()
    if "enum" in schema or "const" in schema:
        return bounds
    if "number" in types or "integer" in types:
        own = [schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")]
        if all(each is None or (isinstance(each, int | float) and abs(each) <= LARGEST) for each in own):
            bounds |= {"minimum": -LARGEST} if own[:2] == [None, None] else {}
            bounds |= {"maximum": LARGEST} if own[2:] == [None, None] else {}
            bounds |= {"multipleOf": STEP} if "number" in types and "multipleOf" not in schema else {}
    if "string" in types and isinstance(form, str) and form in LONGEST and "maxLength" not in schema:
        bounds["maxLength"] = LONGEST[form]
    return bounds
