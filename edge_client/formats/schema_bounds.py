"""Bounds what a JSON schema leaves without end: the digits of a number, and formats that hold digits.

JSON sets no limit, and a model that is held to a schema may write digits until its tokens are used up.
llama.cpp's grammars have 16 digits before the point and 16 behind it. A bound of the schema's own counts.
"""

from __future__ import annotations

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


def bounded(schema: Any) -> Any:
    """Return a schema whose numbers and times end."""
    match schema:
        case list():
            return [bounded(each) for each in schema]
        case dict():
            told = {name: _inner(name, value) for name, value in schema.items()}
            return told | _bounds(told)
        case _:
            return schema


def _inner(keyword: str, value: Any) -> Any:
    if keyword in BY_NAME and isinstance(value, dict):
        return {name: bounded(each) for name, each in value.items()}
    return bounded(value) if keyword in WITHIN + OF_ALL else value


def _bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds that a schema lacks."""
    types, form = schema.get("type"), schema.get("format")
    types = types if isinstance(types, list) else [types]
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
