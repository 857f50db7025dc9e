"""The API's description is what the daemon does: answers fit it, and what it allows is no defect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings

from edge_client.api.app import OPENAPI
from edge_client.api.security import HEALTH_PATHS, OPEN_PATHS
from edge_client.formats.fields import Fields
from edge_client.texts.figures import SessionRun
from edge_client.texts.text_request import TextRequest
from lab.tools.openapi import BODIES, request_schema, schema_of
from tests.clients.scripted import Bytes
from tests.edge_client.api.world import world
from tests.golden.streams import ScriptedRun, ScriptedTexts, scripted_client

DOCUMENT = json.loads(OPENAPI.read_text())
METHODS = ("get", "post", "delete")


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in methods:
                yield method, path, methods[method]


@pytest.mark.api
@pytest.mark.grpc
async def test_each_path_is_described_with_its_methods() -> None:
    """Beside the page's files and trees, which belong to other routes."""
    async with world() as found:
        routes = found.api.routes
        served = (await found.client.get("/openapi.json")).json()
    there = {
        (method.lower(), route.path.replace(":path", ""))
        for route in routes
        if not route.path.endswith("/models/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(method, path) for method, path, _ in operations()}
    assert served == DOCUMENT
    assert there <= described
    assert {path for _, path in described - there} <= {
        *("/", "/page.css", "/page.js", "/favicon.ico"),
        "/v1/sessions/{id}/tree",
    }


def test_a_token_is_required_but_for_open_paths() -> None:
    assert DOCUMENT["security"]
    without = {path for _, path, told in operations() if told.get("security") == []}
    assert without == OPEN_PATHS & DOCUMENT["paths"].keys() >= {"/healthz", "/readyz", *HEALTH_PATHS}


def test_names_types_and_bounds_are_those_of_the_reading_code() -> None:
    def read(fields: Fields) -> None:
        if fields.has("late"):
            fields.whole("late", 0, 1, 7)
        inner = fields.needed("inner")
        inner.choice("kind", "", ("a", "b"))
        own = inner.having(given=1)
        own.whole("given", 0, 0, 1)
        own.number("share", 0.0, 0.0, 0.5)
        for each in fields.entries("list", 3):
            each.flag("on")
        fields.only("echo", (False,), "no")

    schema = request_schema(read, [{"inner": {}}, {"inner": {}, "late": 2, "list": [{}]}])
    assert schema["required"] == ["inner"]
    properties = schema["properties"]
    assert properties["late"] == {"type": ["integer", "null"], "minimum": 1, "maximum": 7}
    assert properties["echo"] == {"enum": [False, None]}
    assert properties["list"]["maxItems"] == 3
    assert properties["list"]["items"]["properties"] == {"on": {"type": ["boolean", "null"]}}
    assert properties["inner"]["type"] == "object"
    assert properties["inner"]["properties"] == {
        "kind": {"type": ["string", "null"], "enum": ["a", "b", None]},
        "share": {"type": ["number", "null"], "minimum": 0.0, "maximum": 0.5},
    }


def test_an_answer_is_described_by_what_all_its_examples_have() -> None:
    schema = schema_of([{"a": None, "b": [1], "c": None}, {"a": "x", "b": [], "c": None, "d": True}])
    assert schema["required"] == ["a", "b", "c"]
    assert schema["properties"] == {
        "a": {"type": ["null", "string"]},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {},
        "d": {"type": "boolean"},
    }


class OneAnswer(ScriptedTexts):
    """The same text for whatever is asked."""

    def _begin(self, request: TextRequest, *_: object) -> Callable[[Sequence[int]], SessionRun]:
        tokens = (*b"Hello, I am here.", *Bytes.eos_ids)[: request.sampling.max_tokens]
        return lambda written: ScriptedRun(len(request.prompt) + len(written), tokens[len(written) :])


NAMES = [f"{method.upper()} {path}" for method, path, _ in operations()]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_allowed_is_no_defect_and_every_answer_fits(name: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    told = pytest.importorskip("schemathesis.specs.openapi.checks")
    checks = [
        pytest.importorskip("schemathesis.checks").not_a_server_error,
        told.status_code_conformance,
        told.content_type_conformance,
        told.response_schema_conformance,
    ]
    method, _, path = name.partition(" ")
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_client(OneAnswer)) as client,
    ):

        def ask(case: Any) -> int:
            request = case.as_transport_kwargs(base_url="http://127.0.0.1")
            del request["cookies"]  # httpx takes none for a single request
            answer = portal.call(lambda: client.request(**request))
            case.validate_response(answer, checks=checks)
            return int(answer.status_code)

        @settings(
            max_examples=10, deadline=None, phases=(Phase.generate,), suppress_health_check=[*HealthCheck]
        )
        @given(case=operation.as_strategy())
        def asked(case: Any) -> None:
            ask(case)

        asked()
        for body in BODIES.get(path, ()) if method == "POST" else ():
            own = {**body, "stream": False, "stream_options": None, "model": ""}
            assert ask(operation.Case(body=own, media_type="application/json")) == 200, body
