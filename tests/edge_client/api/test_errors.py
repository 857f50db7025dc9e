"""Whatever is wrong with a request is told in OpenAI's shape: whose fault, at which field, what to do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from common.errors import Code, UserError
from edge_client.api.errors import api_error
from edge_client.api.security import Gate
from edge_client.daemon.device import DeviceSettings
from tests.edge_client.api.world import OneVerifier, Seats, World, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "abc"}]
OK: dict[str, Any] = {"messages": USER, "max_tokens": 2}

NONSENSE = {"type": "nonsense"}

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "at least one message"),
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": "abc"}, "messages", "must be a list"),
    ({"messages": ["abc"]}, "messages[0]", "must be an object"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "must be a string or a list of text parts"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "must be one of system"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "must be one of system"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "must be a string"),
    ({"messages": [{"role": "user", "content": "a", "nmae": "x"}]}, "messages[0].nmae", "did you mean name?"),
    ({"messages": [*USER, {"role": "user", "content": [{"type": "image_url"}]}]},
     "messages", "'image_url' is not"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
     "messages[0].tool_calls", "no tools"),
    ({"messages": [{"role": "user", "content": "xyz"}]}, "messages", "the prompt is empty"),
    ({"max_tokens": 0}, "max_tokens", "whole number from 1"),
    ({"max_tokens": -1}, "max_tokens", "whole number from 1"),
    ({"max_tokens": 2.5}, "max_tokens", "whole number from 1"),
    ({"max_tokens": "5"}, "max_tokens", "whole number from 1"),
    ({"max_tokens": True}, "max_tokens", "whole number from 1"),
    ({"max_tokens": 2**31}, "max_tokens", "whole number from 1"),
    ({"max_tokens": 10_000}, "messages", "room for 512 tokens; the prompt has 3"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "are the same and differ"),
    ({"temperature": -0.1}, "temperature", "number from 0 to 100"),
    ({"temperature": "hot"}, "temperature", "number from 0 to 100"),
    ({"top_p": 1.5}, "top_p", "number from 0 to 1"),
    ({"top_p": -1}, "top_p", "number from 0 to 1"),
    ({"top_k": -2}, "top_k", "whole number from -1"),
    ({"top_k": 1.5}, "top_k", "whole number from -1"),
    ({"min_p": 2}, "min_p", "number from 0 to 1"),
    ({"presence_penalty": 101}, "presence_penalty", "number from -100 to 100"),
    ({"frequency_penalty": []}, "frequency_penalty", "number from -100 to 100"),
    ({"repetition_penalty": 0}, "repetition_penalty", "number from 1e-06"),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty", "give one of them"),
    ({"seed": "1"}, "seed", "whole number"),
    ({"seed": 2**64}, "seed", "whole number"),
    ({"seed": 1.5}, "seed", "whole number"),
    ({"logit_bias": [1]}, "logit_bias", "must be an object"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "a token id and -100 to 100"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "a token id and -100 to 100"),
    ({"logit_bias": {"1": "x"}}, "logit_bias", "a token id and -100 to 100"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "a token id and -100 to 100"),
    ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias", "at most 1024"),
    ({"stop": 5}, "stop", "must be a string, or a list"),
    ({"stop": [""]}, "stop", "not empty"),
    ({"stop": ["a", 5]}, "stop", "must be a string, or a list"),
    ({"stop": ["a"] * 17}, "stop", "at most 16 strings"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token ids only"),
    ({"stop_token_ids": "5"}, "stop_token_ids", "must be a list"),
    ({"ignore_eos": "yes"}, "ignore_eos", "true or false"),
    ({"stream": 1}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true only"),
    ({"stream": True, "stream_options": {"include_usage": 1}},
     "stream_options.include_usage", "true or false"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "not a field"),
    ({"stream": True, "stream_options": []}, "stream_options", "must be an object"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs: true only"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"logprobs": 1}, "logprobs", "true or false"),
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "must be one of text, json_object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema", "must be an object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NONSENSE}}},
     "response_format", "nonsense"),
    ({"user": 5}, "user", "must be a string"),
    ({"model": 5}, "model", "must be a string"),
    ({"temprature": 1}, "temprature", "did you mean temperature?"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "without `messages`"),
    ({"forerun": []}, "forerun", "must be an object"),
    ({"forerun": {"policy": "wild"}}, "forerun", "growth policy 'wild' is unknown"),
    ({"forerun": {"acceptance": "wild"}}, "forerun", "wild"),
    ({"forerun": {"fallback": "maybe"}}, "forerun.fallback", "must be one of"),
    ({"forerun": {"speculate": "no"}}, "forerun.speculate", "true or false"),
    ({"forerun": {"polcy": "tree"}}, "forerun.polcy", "did you mean policy?"),
    ({"forerun": {"regex": "[a-"}}, "forerun", "regex"),
    ({"forerun": {"regex": "a+", "grammar": "start: /a/"}}, "forerun.regex", "only one"),
    ({"forerun": {"regex": "a+"}, "response_format": {"type": "json_object"}},
     "response_format", "only one"),
]  # fmt: skip
"""What is added to a request that would be answered; the field that the error names; part of its words."""

UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"n": 1.0}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {}}, "audio"),
    ({"prediction": {}}, "prediction"),
    ({"store": True}, "store"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prompt_cache_key": "k"}, "prompt_cache_key"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
]
"""Fields that other servers do and this one does not."""


@pytest.mark.parametrize(("more", "param", "words"), WRONG)
async def test_a_wrong_field_is_named(more: dict[str, Any], param: str, words: str) -> None:
    async with world() as found:
        error = await refused(found, CHAT, {**OK, **more}, 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(("more", "param"), UNSUPPORTED)
async def test_what_is_not_supported_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    async with world() as found:
        error = await refused(found, CHAT, {**OK, **more}, 400)
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert error["message"].startswith(f"{param} is not supported here: ")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "a string or a list of token ids"),
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": []}, "prompt", "not empty"),
        ({"prompt": 5}, "prompt", "a string or a list of token ids"),
        ({"prompt": ["abc", "abc"]}, "prompt", "several prompts"),
        ({"prompt": [[1], [2]]}, "prompt", "several prompts"),
        ({"prompt": [7]}, "prompt", "token ids from 0 to 6"),
        ({"prompt": [-1]}, "prompt", "token ids from 0 to 6"),
        ({"prompt": [1.0]}, "prompt", "token ids from 0 to 6"),
        ({"prompt": [True]}, "prompt", "token ids from 0 to 6"),
        ({"prompt": "abc", "suffix": "x"}, "suffix", "only goes on from a text's end"),
        ({"prompt": "abc", "echo": True}, "echo", "before the answer yourself"),
        ({"prompt": "abc", "logprobs": True}, "logprobs", "whole number from 0 to 20"),
        ({"prompt": "abc", "logprobs": 21}, "logprobs", "whole number from 0 to 20"),
        ({"prompt": "abc", "messages": []}, "messages", "not a field"),
        ({"prompt": [1] * 512}, "prompt", "room for 512 tokens"),
        ({"prompt": "abc", "max_tokens": 510}, "prompt", "room for 512 tokens"),
    ],
)
async def test_a_wrong_completion_is_named(body: dict[str, Any], param: str, words: str) -> None:
    async with world() as found:
        error = await refused(found, TEXT, body, 400)
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b"NaN"])
async def test_a_body_that_is_no_object_is_told_so(body: bytes) -> None:
    async with world() as found:
        answer = await found.client.post(CHAT, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
async def test_numbers_that_are_none_are_told_so(number: str) -> None:
    async with world() as found:
        answer = await found.client.post(
            TEXT, content=b'{"prompt": "abc", "temperature": %s}' % number.encode()
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temperature"


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with world(max_body_bytes=100) as found:
        told = await found.client.post(CHAT, content=b"x" * 101)
        untold = await found.client.post(CHAT, content=pieces())
    assert [told.status_code, untold.status_code] == [413, 413]
    assert "at most" in told.text or "more than the 100 bytes" in told.text


async def pieces() -> Any:
    for _ in range(30):
        yield b"x" * 10


@pytest.mark.parametrize("model", ["gpt-4", "tiny@other", "TINY"])
async def test_an_unknown_model_is_404_and_the_known_ones_are_named(model: str) -> None:
    async with world() as found:
        error = await refused(found, CHAT, {**OK, "model": model}, 404)
    assert error["code"] == "model_not_found"
    assert "tiny@tiny-draft, tiny, tiny-draft" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", CHAT, 405, "wrong_method"),
        ("DELETE", "/v1/models", 405, "wrong_method"),
        ("POST", "/v1/embeddings", 404, "unsupported_endpoint"),
        ("POST", "/v1/responses", 404, "unsupported_endpoint"),
        ("POST", "/v1/messages", 404, "unsupported_endpoint"),
        ("POST", "/api/chat", 404, "unsupported_endpoint"),
        ("GET", "/v1/models/gpt-4", 404, "model_not_found"),
        ("GET", "/v1/stream?conv_id=x", 404, "stream_not_found"),
        ("GET", "/v1/stream", 400, None),
        ("DELETE", "/v1/stream", 400, None),
        ("GET", "/v1/chat/completions/", 404, "not_found"),
    ],
)
async def test_paths_that_are_not_there(method: str, path: str, status: int, code: str | None) -> None:
    async with world() as found:
        answer = await found.client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"]


async def test_a_full_queue_answers_429_with_a_time_to_come_again() -> None:
    settings = DeviceSettings(seats=1, max_waiting=0)
    async with world(settings=settings) as found, found.device.admission.place("somebody"):
        answer = await found.client.post(CHAT, json=OK)
        streamed = await found.client.post(CHAT, json={**OK, "stream": True})
    for each in (answer, streamed):
        assert each.status_code == 429
        assert int(each.headers["retry-after"]) >= 1
        assert each.json()["error"]["type"] == "rate_limit_error"


async def test_streams_that_come_at_once_are_refused_by_their_status_too() -> None:
    """A place is taken before a response begins: clients do not try again after a 200."""
    async with world(settings=DeviceSettings(seats=1, max_waiting=3)) as found:
        async with found.device.admission.place("somebody"):
            body = {**OK, "stream": True}
            asking = [asyncio.create_task(found.client.post(CHAT, json=body)) for _ in range(12)]
            refused = [await each for _, each in zip(range(9), asyncio.as_completed(asking), strict=False)]
        served = [each for each in await asyncio.gather(*asking) if each not in refused]
        assert (found.device.admission.num_active, found.device.admission.num_waiting) == (0, 0)
    assert [each.status_code for each in refused] == [429] * 9
    assert all("retry-after" in each.headers for each in refused)
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


async def test_a_draft_without_a_seat_leaves_the_text_to_the_verifier_and_says_so() -> None:
    async with world(seats=Seats(most=0)) as found:
        body = (await found.client.post(CHAT, json=OK)).json()
    assert body["forerun"]["mode"] == "server-only"
    assert body["forerun"]["notes"] == ["nothing is drafted: all seats are taken"]


async def test_logprobs_of_a_draft_alone_are_refused() -> None:
    async with world() as found:
        error = await refused(found, CHAT, {**OK, "model": "tiny-draft", "logprobs": True}, 400)
    assert error["param"] == "logprobs"


async def test_a_template_that_refuses_is_the_users_error() -> None:
    async with world(template="{{ raise_exception('no system message, please') }}") as found:
        error = await refused(found, CHAT, OK, 400)
    assert "no system message, please" in error["message"]


async def test_a_template_that_breaks_is_the_verifiers() -> None:
    async with world(template="{{ nothing.at.all }}") as found:
        error = await refused(found, CHAT, OK, 502)
    assert error["code"] == "verifier_at_fault"


async def test_while_nobody_has_told_a_template_a_client_is_to_try_again() -> None:
    async with world() as found:
        verifier = found.device.verifiers
        assert isinstance(verifier, OneVerifier)
        verifier.description = None
        verifier.spoken.set()  # all that could speak have failed
        answer = await found.post_chat()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "no verifier has told its chat template yet" in answer.json()["error"]["message"]


async def test_a_target_without_a_template_points_to_completions() -> None:
    async with world(template="") as found:
        error = await refused(found, CHAT, OK, 400)
    assert "/v1/completions" in error["message"]


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


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/models", "/v1/status", "/metrics", "/v1/sessions"])
async def test_without_the_token_nothing_is_told(path: str) -> None:
    async with world(Gate(token="secret")) as found:
        answer = await found.client.request("POST" if path in (CHAT, TEXT) else "GET", path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_with_the_token_everything_is() -> None:
    async with world(Gate(token="secret"), headers={"authorization": "Bearer secret"}) as found:
        assert (await found.client.get("/v1/models")).status_code == 200
        assert (await found.client.post(CHAT, json=OK)).status_code == 200


async def test_a_page_of_another_site_gets_nothing() -> None:
    async with world() as found:
        answer = await found.client.post(CHAT, json=OK, headers={"origin": "https://evil.example"})
        rebound = await found.client.get("/v1/models", headers={"host": "evil.example"})
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert rebound.json()["error"]["code"] == "host_not_allowed"


async def test_an_allowed_page_may_read_the_answer() -> None:
    origin = "https://ui.example"
    async with world(Gate(origins=(origin,))) as found:
        asked = await found.client.options(CHAT, headers={"origin": origin})
        answer = await found.client.post(CHAT, json=OK, headers={"origin": origin})
    assert asked.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
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
    assert "the token has expired" in str(found)
