"""Describes the daemon's API in OpenAPI 3.1, from the code that reads its requests and forms its responses.

Each endpoint's reader reads good bodies through `RecordingFields`, which notes names, types and bounds. Its
former forms some messages, whose JSON is described. Paths and summaries are those of docs/api.md.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_client.api.model_lists import read_name
from edge_client.api.security import OPEN_PATHS
from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.api_error import ApiError
from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.dialect import ChoiceEnd, Dialect, Heading, Json, StopReason, Usage
from edge_client.formats.dialects import DIALECTS, PATHS, error_body
from edge_client.formats.fields import Fields
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    Message,
    MessagePart,
    ReasoningAdded,
)
from edge_client.formats.responses import Responses
from edge_client.formats.token_requests import read_detokenize, read_template, read_tokenize
from edge_client.texts.figures import TextFigures
from lab.tools.bodies import GOOD, HELD


def _reader(dialect: type[Dialect]) -> Callable[[Fields], object]:
    return lambda fields: None if dialect.asks_nothing(fields.values) else dialect.parse(fields)


BODIES = {path: [*bodies, *HELD.get(path, ())] for path, bodies in GOOD.items()}
TEXTS = {each: _reader(each) for each in DIALECTS}
READERS: Mapping[str, Callable[[Fields], object]] = {
    **{path: TEXTS[each] for path, each in PATHS.items()},
    f"{AnthropicMessages.path}/count_tokens": TEXTS[AnthropicMessages],
    f"{Responses.path}/input_tokens": TEXTS[Responses],
    **dict.fromkeys(("/tokenize", "/v1/tokenize"), read_tokenize),
    **dict.fromkeys(("/detokenize", "/v1/detokenize"), read_detokenize),
    **dict.fromkeys(("/apply-template", "/v1/apply-template"), read_template),
    "/api/show": read_name,
}
"""What reads the bodies of each path."""

QUERIES = {
    "GET /v1/models": ("client_version",),
    "GET /v1/responses/{name}": ("stream", "starting_after"),
    "GET /v1/responses/{name}/input_items": ("order",),
    "GET /v1/stream": ("conv_id", "from"),
    "DELETE /v1/stream": ("conv_id",),
}
"""Parameters after the path."""

ROW = re.compile(r"^\| (`(?:GET|POST|DELETE) /.*?) \| (.*) \|$", re.MULTILINE)
"""Matches a row of the endpoints' table: paths, and what they return."""

SHORT = re.compile(r"[\[{]\n[^][{}]{1,100}\n\s*[\]}]")
"""Matches a list or an object that fits into a line. No string of JSON has a line's end."""

SPANS = (TextSpan("a", None),)
PARTS: tuple[list[MessagePart], ...] = (
    [ContentAdded(SPANS)],
    [ReasoningAdded(SPANS), CallBegun(0, "f"), ArgumentsAdded(0, '{"x": "a"}')],
    [],
)
"""Messages that responses are formed of."""


class RecordingFields(Fields):
    """Notes the name, the type and the bounds of each field that is read, in `described`.

    Fields in `hidden` have values of the reader's own, not of the request.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        at: str = "",
        described: Json | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        super().__init__(values, at)
        self.described = {} if described is None else described
        self.described |= {"type": ["object", "null"], "properties": {}, **self.described}
        self._hidden = hidden

    def any(self, name: str) -> Any:
        self._place(name)
        return super().any(name)

    def has(self, name: str) -> bool:
        self._place(name)
        return super().has(name)

    def text(self, name: str, default: str = "", longest: int = 2**20) -> str:
        self._note(name, "string", maxLength=longest)
        return super().text(name, default, longest)

    def flag(self, name: str, default: bool = False) -> bool:
        self._note(name, "boolean")
        return super().flag(name, default)

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        self._note(name, "integer", minimum=low, maximum=high)
        return super().whole(name, default, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        self._note(name, "number", minimum=low, maximum=high)
        return super().number(name, default, low, high)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        self._note(name, "string", enum=[*allowed, None])
        return super().choice(name, default, allowed)

    def object(self, name: str) -> Fields | None:
        self._note(name, "object")
        return super().object(name)

    def schema(self, name: str) -> Json:
        self._note(name, "object")
        return super().schema(name)

    def list(self, name: str, longest: int) -> list[Any]:
        self._note(name, "array", maxItems=longest)
        return super().list(name, longest)

    def only(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        place = self._place(name)
        place |= {} if place else {"enum": [*allowed, None]}
        super().only(name, allowed, why)

    def having(self, **values: Any) -> Fields:
        own = super().having(**values)
        fields = RecordingFields(own.values, self.at, self.described, (*self._hidden, *values))
        fields._read, fields._inner = self._read, self._inner
        return fields

    def _within(self, place: str, values: Mapping[str, Any]) -> Fields:
        name, is_entry, _ = place.rstrip(".").partition("[")
        schema = self._place(name)
        if is_entry:
            schema.setdefault("type", ["array", "null"])
            schema = schema.setdefault("items", {})
        return RecordingFields(values, f"{self.at}{place}", schema)

    def _place(self, name: str) -> Json:
        """Return the schema of a field; one that nobody sees for a hidden field."""
        if name in self._hidden:
            return {}
        place: Json = self.described["properties"].setdefault(name, {})
        return place

    def _note(self, name: str, kind: str, **bounds: Any) -> None:
        place = self._place(name)
        place |= {"type": [kind, "null"], **bounds, **place}


def request_schema(read: Callable[[Fields], object], bodies: Sequence[Json]) -> Json:
    """Return the JSON schema of the bodies that `read` takes, as the good `bodies` show it."""
    described: Json = {}
    for body in bodies:
        read(RecordingFields(body, described=described))
    names = {name for body in bodies for name in body}
    needed = sorted(name for name in names if all(_is_needed(read, body, name) for body in bodies))
    for name in needed:
        place = described["properties"][name]
        place |= {"type": place["type"][0]} if "type" in place else {}
    return {**described, "type": "object", **({"required": needed} if needed else {})}


def _is_needed(read: Callable[[Fields], object], body: Json, name: str) -> bool:
    try:
        read(Fields({key: value for key, value in body.items() if key != name}))
    except ApiError as error:
        return error.param == name
    return False


def schema_of(values: Sequence[Any]) -> Json:
    """Return the JSON schema of example values. What is null in all of them may be anything."""
    kinds = sorted({_kind(value) for value in values})
    if kinds in ([], ["null"]):
        return {}
    schema: Json = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if objects := [value for value in values if isinstance(value, dict)]:
        names = list(dict.fromkeys(name for each in objects for name in each))
        schema["properties"] = {
            name: schema_of([each[name] for each in objects if name in each]) for name in names
        }
        schema["required"] = [name for name in names if all(name in each for each in objects)]
    if lists := [value for value in values if isinstance(value, list)]:
        schema["items"] = schema_of([entry for each in lists for entry in each])
    return schema


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def response_schema(dialect: type[Dialect], bodies: Sequence[Json]) -> Json:
    """Return the JSON schema of an endpoint's whole responses."""
    ours = {**TextFigures("ahead").as_json(), "seed": 1, "notes": ["a"]}
    ends = [ChoiceEnd(finish, stop, ours) for finish in StopReason for stop in (None, "a")]
    values = list[Json]()
    for body in bodies:
        if dialect.asks_nothing(body):
            heading = _heading(dialect, {"keep_alive": body.get("keep_alive")})
            values.append(dialect(heading, None).whole((), Usage(0)))
            continue
        heading = _heading(dialect, dialect.parse(Fields(body)).form)
        for parts in PARTS:
            message = Message()
            message.add(parts)
            values += [dialect(heading, None).whole([(message, end)], Usage(1)) for end in ends]
    return schema_of(values)


def _heading(dialect: type[Dialect], form: Json) -> Heading:
    return Heading(f"{dialect.prefix}0", 0, "m", "fp", form)


ERRORS = {"openai": "/v1/models", "anthropic": AnthropicMessages.path, "ollama": "/api/tags"}
"""A path with the errors of each API."""


def _errors(path: str) -> Json:
    """Return the schema of errors in the shape of the path's own API."""
    bodies = [error_body(path, ApiError(400, "a", param=param, code=param)) for param in (None, "a")]
    return schema_of(bodies)


def _endpoints(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield method, path and summary of each endpoint in the page's table."""
    for names, result in ROW.findall(page):
        summary = re.sub(r"\[([^]]*)\]\([^)]*\)|[`]", r"\1", result)
        for method, path in re.findall(r"`([A-Z]+) ([^`]+)`", names):
            yield method, path.replace(":path", ""), summary


def _api(path: str) -> str:
    """Return the API whose errors a path has."""
    return next(name for name, each in ERRORS.items() if _errors(each) == _errors(path))


def _operation(method: str, path: str, summary: str) -> Json:
    parameters = [
        *({"name": name, "in": "path", "required": True} for name in re.findall(r"{(\w+)}", path)),
        *({"name": name, "in": "query"} for name in QUERIES.get(f"{method} {path}", ())),
    ]
    good = {"204" if (method, path) == ("DELETE", "/v1/stream") else "200": {"description": summary}}
    told: Json = {
        "summary": summary,
        "responses": {**good, "default": {"$ref": f"#/components/responses/{_api(path)}"}},
    }
    if path in OPEN_PATHS:
        told["security"] = []
    if parameters:
        told["parameters"] = [{**each, "schema": {"type": "string"}} for each in parameters]
    dialect = PATHS.get(path) if method == "POST" else None
    if method == "POST":
        name = dialect.name if dialect is not None else _name(path)
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}},
        }
    if dialect is not None:
        whole = {"$ref": f"#/components/schemas/{dialect.name}_response"}
        content = {"application/json": {"schema": whole}, dialect.media_type: {"schema": {"type": "string"}}}
        told["responses"]["200"] = {"description": "The whole text, or its stream", "content": content}
    return told


def _name(path: str) -> str:
    """Return the name of a path's schema; paths with one reader share it."""
    first = next(each for each, read in READERS.items() if read == READERS[path])
    return next((each.name for each in DIALECTS if each.path == first), first.strip("/").replace("/", "_"))


def document(page: str, version: str) -> Json:
    """Return the description of all endpoints in the page's table."""
    paths: dict[str, Json] = {}
    for method, path, summary in _endpoints(page):
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, summary)
    schemas = {
        _name(path): request_schema(read, BODIES[path]) for path, read in READERS.items() if path in BODIES
    }
    schemas |= {f"{each.name}_response": response_schema(each, BODIES[each.path]) for each in DIALECTS}
    errors = {
        name: {"description": "An error", "content": {"application/json": {"schema": _errors(each)}}}
        for name, each in ERRORS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Forerun", "version": version, "description": "docs/api.md says more."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": errors,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def text(page: Path, project: Path) -> str:
    """Return the description as JSON text, from docs/api.md and pyproject.toml."""
    version = tomllib.loads(project.read_text("utf-8"))["project"]["version"]
    told = json.dumps(document(page.read_text("utf-8"), version), indent=1, ensure_ascii=False)
    return SHORT.sub(lambda found: re.sub(r"\n\s*", " ", found[0]), told) + "\n"
