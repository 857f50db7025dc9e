"""Whatever is wrong with a request is told in OpenAI's shape: whose fault, at which field, what to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import Code, UserError
from common.vocabulary import Vocabulary
from edge_client.api.security import Gate
from edge_client.formats.api_error import api_error
from edge_client.formats.fields import MAX_DEPTH, Fields
from edge_client.formats.openai import ChatCompletion, tool_call
from edge_client.network.verifiers import Verifiers
from edge_client.texts.text_service import TextSettings
from lab.tools.bodies import GOOD
from tests import wording
from tests.edge_client.api.world import World, world
from tests.support.tiny import TABLE, VOCABULARY

pytestmark = [pytest.mark.api, pytest.mark.grpc]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "abc"}]
OK: dict[str, Any] = {"messages": USER, "max_tokens": 2}

NONSENSE = {"type": "nonsense"}

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": ["abc"]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "system"}]}, "messages[0].content"),
    ({"messages": [*USER, {"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[1].content"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
     "messages[0].tool_calls[0].function"),
    ({"messages": [{"role": "user", "content": "xyz"}]}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10_000}, "messages"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_k": -2}, "top_k"),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
    ({"logit_bias": {"7": 1}}, "logit_bias"),
    ({"stop_token_ids": [7]}, "stop_token_ids"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NONSENSE}}},
     "response_format"),
    ({"n": 17}, "n"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": "f"}}, "tool_choice"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"prediction": "abc"}, "prediction"),
    ({"prediction": {"type": "image"}}, "prediction.type"),
    ({"prediction": {"type": "content", "content": [{"type": "text"}]}}, "prediction.content"),
    ({"forerun": {"reference": ["a"] * 65}}, "forerun.reference"),
    ({"forerun": {"policy": "wild"}}, "forerun"),
    ({"forerun": {"fallback": "maybe"}}, "forerun.fallback"),
    ({"forerun": {"polcy": "tree"}}, "forerun.polcy"),
    ({"forerun": {"regex": "[a-"}}, "forerun"),
    ({"forerun": {"regex": "a+", "grammar": "start: /a/"}}, "forerun.regex"),
    ({"forerun": {"regex": "a+"}, "response_format": {"type": "json_object"}},
     "response_format"),
    ({"forerun": {"regex": "a+"}, "tools": [TOOL], "tool_choice": "required"}, "forerun"),
]  # fmt: skip
"""What is added to a request that would be answered; the field that the error names."""

WRONG_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": ["a", []]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": ["a"] * 5, "n": 13}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[1], [7]]}, "prompt[1]"),
    ({"prompt": [[1], ["a"]]}, "prompt[1]"),
    ({"prompt": ["a", "b"], "suffix": "x"}, "suffix"),
    ({"prompt": [7]}, "prompt"),
    ({"prompt": "abc", "suffix": "x"}, "suffix"),
    ({"prompt": "abc", "echo": True}, "echo"),
    ({"prompt": "abc", "logprobs": 21}, "logprobs"),
    ({"prompt": "abc", "max_tokens": 510}, "prompt"),
]


async def test_a_wrong_field_is_named() -> None:
    cases = [*((CHAT, {**OK, **more}, param) for more, param in WRONG)]
    cases += [(TEXT, body, param) for body, param in WRONG_COMPLETIONS]
    async with world() as found:
        for path, body, param in cases:
            error = await refused(found, path, body, 400)
            assert (error["type"], error["param"]) == ("invalid_request_error", param), body
            wording.keep(error["message"])


WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"tools": []},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [TOOL], "tool_choice": "none"},
    {"functions": [], "function_call": "none"},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"tools": [{"type": "web_search"}]},
    {"metadata": {"run": "7"}, "store": True, "client_metadata": {"a": 1}, "verbosity": "high"},
    {"prompt_cache_key": "k", "user": "u", "safety_identifier": "s", "service_tier": "flex"},
    {"temprature": 1, "n_keep": 1, "num_keep": 3, "tool_servers": []},
    {"messages": [{"role": "user", "content": "abc", "nmae": "x", "cache_control": {}}]},
    {"reasoning_effort": "high"},
    {"n": 1, "best_of": 1, "reasoning_effort": "none", "modalities": ["text"]},
    {"logprobs": False, "top_logprobs": 0},
    {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": []}]},
]


async def test_what_changes_nothing_is_accepted() -> None:
    async with world() as found:
        plain, *labelled = [(await found.post_chat(**each)).json() for each in ({}, *WITHOUT_EFFECT)]
    for each, answer in zip(WITHOUT_EFFECT, labelled, strict=True):
        assert answer["choices"] == plain["choices"], each


async def test_an_unknown_field_is_logged_once_with_what_was_meant(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "edge_client.formats.fields")
    async with world() as found:
        await found.chat(temprature=1, metadata={"a": "b"})
    lines = [each.getMessage() for each in caplog.records if each.name == "edge_client.formats.fields"]
    wording.keep(lines[0])


async def test_a_refused_request_is_logged_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edge_client.formats.api_error")
    async with world(gate=Gate(token="secret")) as found:
        own = {"authorization": "Bearer secret"}
        await found.client.post(CHAT, json=OK | {"model": "private words"}, headers=own)
        await found.client.post(CHAT, json={}, headers={"authorization": "Bearer private words"})
        await found.client.get("/private%0Awords", headers=own)
    lines = [each.getMessage() for each in caplog.records if each.name == "edge_client.formats.api_error"]
    assert [line.split(": ")[1] for line in lines] == [
        "404 model_not_found",
        "401 invalid_api_key",
        "404 not_found",
    ]
    assert all("private words" not in line and "\n" not in line for line in lines)


async def test_a_body_that_is_no_object_is_told_so() -> None:
    bodies = (b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b"NaN")
    async with world() as found:
        answers = [await found.client.post(CHAT, content=body) for body in bodies]
        numbers = [
            await found.client.post(TEXT, content=b'{"prompt": "abc", "temperature": %s}' % number)
            for number in (b"NaN", b"Infinity", b"1e999")
        ]
    assert {(each.status_code, each.json()["error"]["code"]) for each in answers} == {(400, "invalid_json")}
    assert [each.json()["error"]["param"] for each in numbers] == ["temperature"] * 3


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_body_is_nested_at_most_as_deeply_as_all_its_readers_can_take(path: str) -> None:
    async with world() as found:
        for depth, statuses in ((MAX_DEPTH - 8, {200, 400}), (MAX_DEPTH, {400}), (600, {400})):
            deep = json.loads("[" * depth + "]" * depth)
            function = {"name": "f", "parameters": {"x": deep}}
            tool = {"type": "function", "function": function, "input_schema": {"x": deep}, **function}
            for more in ({"temperature": deep}, {"metadata": deep}, {"messages": deep}, {"tools": [tool]}):
                body = {**GOOD[path][0], "stream": False, "tool_choice": None, **more}
                answer = await found.client.post(path, json=body)
                assert answer.status_code in statuses, answer.text


def test_arguments_as_text_are_an_object_unless_they_are_nested_too_deeply() -> None:
    for depth, kind in ((MAX_DEPTH - 1, dict), (MAX_DEPTH, str), (600, str)):
        call = tool_call("c", "f", '{"x": ' + "[" * depth + "]" * depth + "}")
        assert type(call["function"]["arguments"]) is kind


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with world(max_body_bytes=100) as found:
        told = await found.client.post(CHAT, content=b"x" * 101)
        untold = await found.client.post(CHAT, content=pieces())
    assert [told.status_code, untold.status_code] == [413, 413]
    assert "at most" in told.text or "more than the 100 bytes" in told.text


async def pieces() -> Any:
    for _ in range(30):
        yield b"x" * 10


async def test_an_unknown_model_is_404_and_the_known_ones_are_named() -> None:
    async with world() as found:
        for model in ("gpt-4", "tiny@other", "TINY"):
            error = await refused(found, CHAT, {**OK, "model": model}, 404)
            assert error["code"] == "model_not_found"
            wording.keep(error["message"])


PATHS = (
    ("GET", "/nothing", 404, "not_found"),
    ("GET", CHAT, 405, "wrong_method"),
    ("POST", "/v1/embeddings", 404, "unsupported_endpoint"),
    ("POST", "/completions", 404, "unsupported_endpoint"),
    ("GET", "/responses/input_tokens", 404, "unsupported_endpoint"),
    ("GET", "/v1/models/gpt-4", 404, "model_not_found"),
    ("GET", "/v1/stream?conv_id=x", 404, "stream_not_found"),
    ("GET", "/v1/stream", 400, None),
    ("GET", "/v1/chat/completions/", 404, "not_found"),
)


async def test_paths_that_are_not_there() -> None:
    async with world() as found:
        for method, path, status, code in PATHS:
            answer = await found.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
            assert answer.json()["error"]["message"]


async def test_a_full_queue_answers_429_also_to_streams_that_come_at_once() -> None:
    """A place is taken before a response begins: clients do not try again after a 200."""
    async with world(settings=TextSettings(seats=1, max_waiting=3)) as found:
        async with found.texts.admission.place("somebody"):
            body = {**OK, "stream": True}
            asking = [asyncio.create_task(found.client.post(CHAT, json=body)) for _ in range(12)]
            refused = [await each for _, each in zip(range(9), asyncio.as_completed(asking), strict=False)]
            refused.append(await found.client.post(CHAT, json=OK))
        served = [each for each in await asyncio.gather(*asking) if each not in refused]
        assert (found.texts.admission.num_active, found.texts.admission.num_waiting) == (0, 0)
    assert [each.status_code for each in refused] == [429] * 10
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    assert {each.json()["error"]["type"] for each in refused} == {"rate_limit_error"}
    assert [each.text.endswith("data: [DONE]\n\n") for each in served] == [True] * 3


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coming = [{"type": "http.request", "body": b'{"mess', "more_body": True}, {"type": "http.disconnect"}]
    told = list[Any]()

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [(b"host", b"127.0.0.1")]}
    async with world() as found:
        await found.api.app({**scope, "query_string": b"", "root_path": ""}, receive, send)
    assert told[0]["status"] == 499
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_while_nobody_has_told_a_template_a_client_is_to_try_again() -> None:
    async with world() as found:
        found.verifier.description = None
        found.verifier.spoken.set()  # all that could speak have failed
        answer = await found.post_chat()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    wording.keep(answer.json()["error"]["message"])


async def test_a_device_too_busy_to_render_a_chat_says_when_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The verifier is not at fault."""
    monkeypatch.setattr("common.child.START_PATIENCE", 0.0)
    async with world(template="{{ messages[0].content }}{# rendered nowhere else #}") as found:
        answer = await found.post_chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert int(answer.headers["retry-after"]) > 0


@contextlib.asynccontextmanager
async def behind(found: World, *addresses: str, vocabulary: Vocabulary) -> AsyncIterator[Verifiers]:
    """The same API with real verifiers, each of which has been asked."""
    async with Verifiers(addresses, vocabulary=vocabulary) as verifiers:
        await verifiers.heard(10.0)
        found.texts.verifiers = verifiers
        yield verifiers


@pytest.mark.parametrize(("path", "fallback"), [(CHAT, "wait"), (TEXT, "draft")])
async def test_a_draft_of_other_tokens_is_told_the_first_that_differs(path: str, fallback: str) -> None:
    other = Vocabulary([*TABLE[:5], b"another", *TABLE[6:]])
    body = OK if path == CHAT else {"prompt": "abc"}
    async with world() as found, behind(found, found.system.address, vocabulary=other):
        error = await refused(found, path, {**body, "forerun": {"fallback": fallback}}, 502)
    assert error["code"] == "verifier_at_fault"
    wording.keep(error["message"])


@pytest.mark.parametrize(("path", "fallback"), [(CHAT, "wait"), (TEXT, "fail")])
async def test_where_no_verifier_ever_answered_a_request_is_refused_at_once(path: str, fallback: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    body = OK if path == CHAT else {"prompt": "abc"}
    async with world() as found, behind(found, nobody, vocabulary=VOCABULARY):
        error = await refused(found, path, {**body, "forerun": {"fallback": fallback}}, 503)
        drafted = await found.post(forerun={"fallback": "draft"})
    assert error["code"] == "verifier_unavailable"
    assert nobody in error["message"]
    assert drafted.json()["forerun"]["device_tokens"] > 0


async def test_an_error_in_a_stream_is_its_last_event() -> None:
    """A lossy rule is refused by the verifier: after the response has begun."""
    async with world() as found:
        answer = await found.post_chat(stream=True, forerun={"acceptance": "typical"})
        whole = await found.post_chat(forerun={"acceptance": "typical"})
    assert answer.status_code == 200
    last = [line for line in answer.text.splitlines() if line.startswith("data: ")][-1]
    assert '"error"' in last
    assert "typical" in last
    assert "[DONE]" not in answer.text
    assert whole.status_code == 400


async def test_an_allowed_page_may_read_the_answer() -> None:
    origin = "https://ui.example"
    async with world(Gate("secret", origins=(origin,)), headers={"authorization": "Bearer secret"}) as found:
        wanted = "authorization,content-type,x-stainless-retry-count"  # as OpenAI's and Anthropic's SDKs do
        headers = {"origin": origin, "access-control-request-headers": wanted}
        headers["access-control-request-method"] = "POST"
        asked = await found.client.options(CHAT, headers=headers)
        answer = await found.client.post(CHAT, json=OK, headers={"origin": origin})
        unknown = {"origin": origin, "authorization": "Bearer old"}
        denied = await found.client.post(CHAT, json=OK, headers=unknown)
    assert (asked.status_code, asked.headers["access-control-allow-headers"]) == (200, wanted)
    assert (answer.status_code, denied.status_code) == (200, 401)
    for each in (asked, answer, denied):
        assert each.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-credentials" not in answer.headers


async def refused(found: World, path: str, body: dict[str, Any], status: int) -> dict[str, Any]:
    """The error of a request that must be refused so, before any text."""
    answer = await found.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("code", [Code.UNAUTHENTICATED, Code.PERMISSION_DENIED])
def test_a_device_that_its_verifier_does_not_let_in_is_no_fault_of_the_client(code: Code) -> None:
    found = api_error(UserError("the token has expired; the edge needs a fresh one", code))
    assert (found.status, found.code) == (502, code.value.lower())
    wording.keep(str(found))


@pytest.mark.parametrize(
    ("template", "status"),
    [("{{ raise_exception('no system message, please') }}", 400), ("{{ nothing.at.all }}", 502), ("", 400)],
)
async def test_a_template_that_refuses_breaks_or_is_not_there(template: str, status: int) -> None:
    async with world(template=template) as found:
        error = await refused(found, CHAT, OK, status)
        of_a_draft = await refused(found, TEXT, {"prompt": "a", "model": "tiny-draft", "logprobs": 1}, 400)
    wording.keep(error["message"])
    assert of_a_draft["param"] == "logprobs"


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_unknown_fields_cost_little(level: int, caplog: pytest.LogCaptureFixture) -> None:
    """A body has room for half a million, and to look for a similar name takes a while for each."""
    fields = Fields({**OK, **{f"messages{place}": 1 for place in range(100_000)}})
    begun = time.thread_time()
    with caplog.at_level(level):
        ChatCompletion.parse(fields)
    assert time.thread_time() - begun < 1
