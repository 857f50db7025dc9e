"""Paths that other servers' clients ask for, methods that a path allows, and headers of all responses."""

from __future__ import annotations

import gzip
import json
import logging

import pytest

from edge_client.api.other_paths import UNSUPPORTED, advice
from edge_client.api.security import HEALTH_PATHS, OPEN_PATHS, REQUEST_ID, Gate
from tests.edge_client.api.world import world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("path", HEALTH_PATHS)
async def test_clients_that_wait_for_another_server_learn_when_this_one_can_write(path: str) -> None:
    """llama-server answers 503 while it loads; no token is asked for."""
    async with world(gate=Gate(token="secret")) as found:
        good = await found.client.get(path)
        head = await found.client.head(path)
    async with world(gate=Gate(token="secret"), not_ready="no verifier answers") as found:
        bad = await found.client.get(path)
    assert (good.status_code, good.json()) == (200, {"status": "ok"})
    assert (head.status_code, head.content) == (200, b"")
    assert (bad.status_code, bad.json()["error"]["code"]) == (503, "verifier_unavailable")
    assert int(bad.headers["retry-after"]) > 0


async def test_a_slash_after_models_lists_them() -> None:
    async with world() as found:
        models, slash = [(await found.client.get(f"/v1/models{end}")).json() for end in ("", "/")]
        none = await found.client.get("/v1/models//")
    assert slash == models
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/stream", {"GET", "HEAD", "DELETE"}),
        ("/v1/responses/resp_0", {"GET", "HEAD", "DELETE"}),
        ("/v1/models", {"GET", "HEAD"}),
        (CHAT, {"POST"}),
    ],
)
@pytest.mark.parametrize("method", ["OPTIONS", "PATCH"])
async def test_a_refused_method_is_told_all_that_are_allowed(
    path: str, method: str, allowed: set[str]
) -> None:
    async with world() as found:
        answer = await found.client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "wrong_method")
    assert set(answer.headers["allow"].split(", ")) == allowed


OTHERS = (
    ("POST", "/v1/responses/compact"),
    ("GET", "/v1/realtime?model=x"),
    ("GET", "/v1/files/file-1/content"),
    ("DELETE", "/api/delete"),
    ("POST", "/v1/messages/batches/x/cancel"),
    ("POST", "/rerank"),
    ("GET", "/props"),
)


async def test_a_path_of_another_server_says_what_to_do_whatever_the_method() -> None:
    async with world() as found:
        for method, path in OTHERS:
            answer = await found.client.request(method, path)
            assert answer.status_code == 404, path
            assert advice(path.partition("?")[0]) in answer.text, "in the shape of the path's own API"
        near = await found.client.get("/v1/filesystem")
        routes = {route.path for route in found.api.routes}
    assert near.json()["error"]["code"] == "not_found"
    assert not routes & {path for paths in UNSUPPORTED.values() for path in paths}


def test_advice_names_the_path_that_a_client_should_use() -> None:
    assert "/v1/completions" in advice("/completions")
    assert not advice("/v1/responses/resp_1")
    assert not advice("/")


async def test_every_response_names_its_request_as_both_clients_read_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "edge_client.formats.api_error")
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}
    async with world(gate=Gate(token="secret")) as found:
        own = {"authorization": "Bearer secret"}
        answers = [
            await found.client.post(CHAT, json=body, headers=own),
            await found.client.post(CHAT, json={**body, "stream": True}, headers=own),
            await found.client.post(CHAT, json={}, headers=own),
            await found.client.post(CHAT, json=body),
            await found.client.get("/nothing", headers=own),
        ]
    names = [{each.headers[header] for header in REQUEST_ID} for each in answers]
    assert [len(each) for each in names] == [1] * 5
    assert len(set.union(*names)) == 5
    assert [each.status_code for each in answers] == [200, 200, 400, 401, 404]
    logged = [{record.fields["request"]} for record in caplog.records]  # type: ignore[attr-defined]
    assert logged == names[2:], "a refusal in the log is found by its id"


@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_a_compressed_body_is_refused_by_its_coding(coding: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}).encode()
    async with world() as found:
        coded = await found.client.post(
            CHAT, content=gzip.compress(body), headers={"content-encoding": coding}
        )
        plain = await found.client.post(CHAT, content=body, headers={"content-encoding": "Identity"})
    assert (coded.status_code, coded.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert plain.status_code == 200


@pytest.mark.parametrize("counts", ["/v1/responses/input_tokens", "/v1/messages/count_tokens"])
async def test_the_tokens_of_a_request_are_those_that_its_text_begins_with(counts: str) -> None:
    async with world() as found:
        if counts.startswith("/v1/responses"):
            first = (await found.client.post("/v1/responses", json={"input": "abc"})).json()
            body = {"input": "d", "previous_response_id": first["id"]}
            told = (await found.client.post(counts, json=body)).json()
            whole = (await found.client.post("/v1/responses", json={**body, "max_output_tokens": 1})).json()
            assert told == {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]}
        else:
            body = {"messages": [{"role": "user", "content": "abc"}]}
            assert (await found.client.post(counts, json=body)).json() == {"input_tokens": 3}


def test_no_other_path_is_open() -> None:
    """A path without a token tells nothing about texts."""
    pages = {"/", "/page.js", "/page.css", "/favicon.ico"}
    assert OPEN_PATHS - pages == {"/healthz", "/readyz", *HEALTH_PATHS}
