"""OpenAI's Responses API: events and objects of OpenAI's own types, and conversations that are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.grammar import json_schema_grammar
from common.sampling import SamplingDefaults
from edge_client.formats.api_error import ApiError, api_error
from edge_client.formats.dialect import ChoiceEnd, Heading, StopReason
from edge_client.formats.fields import Fields
from edge_client.formats.message import ArgumentsAdded, CallBegun, MessagePart
from edge_client.formats.parsed_request import CallRule, ChatPrompt, ParsedRequest
from edge_client.formats.responses import Responses
from tests.edge_client.api.world import World, alone, world
from tests.edge_client.formats.test_dialects import USAGE, message_of, messages, said, thought

pytestmark = pytest.mark.sdk

SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
SPACE = {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [SHELL]}
TOLD = {"seed": 1, "waited_ms": 1000.0, "elapsed_ms": 1600.0}
ASKED: dict[str, Any] = {"model": "m", "input": "abc", "tools": [SHELL, PATCH, SPACE]}


def read(**fields: Any) -> ParsedRequest:
    return Responses.parse(Fields({**ASKED, **fields}))


def former(**fields: Any) -> Responses:
    return Responses(Heading("resp_1f", 1_700_000_000, "m", "fp_1", read(**fields).form), None)


def events(
    parts: Sequence[MessagePart], finish: StopReason = StopReason.STOP, **fields: Any
) -> list[dict[str, Any]]:
    """The events of a whole stream, as a client reads them."""
    dialect = former(**fields)
    chunks = dialect.first(USAGE) + dialect.added((), {"mode": "ahead", "notes": []}, 0)
    for part in parts:
        chunks += dialect.added((part,), {}, 0)
    end = ChoiceEnd(finish, None, TOLD)
    chunks += dialect.choice_end(end, 0) + dialect.end(end, USAGE)
    return [parsed(dialect.framed(number, chunk)) for number, chunk in enumerate(chunks, 1)]


def parsed(frame: bytes) -> dict[str, Any]:
    number, kind, data = frame.decode().strip().split("\n")
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert kind == f"event: {found['type']}"
    assert number == f"id: {found['sequence_number'] + 1}"
    return found


@cache
def types() -> Any:
    """OpenAI's own types of the events."""
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    return TypeAdapter(ResponseStreamEvent)


def check(found: Sequence[dict[str, Any]]) -> None:
    """Every event must be one of OpenAI's types, with no value of another type."""
    for event in found:
        assert types().validate_json(json.dumps(event), strict=True).type == event["type"]


CALL: list[MessagePart] = [CallBegun(0, "shell"), ArgumentsAdded(0, '{"cmd":'), ArgumentsAdded(0, ' "ls"}')]
CUSTOM: list[MessagePart] = [
    CallBegun(1, "apply_patch"),
    ArgumentsAdded(1, '{"input": "*** Be'),
    ArgumentsAdded(1, 'gin\\n"}'),
]
ALL: list[MessagePart] = [
    thought("think"),
    thought(" more"),
    said("\n\n"),
    said("I look."),
    said("\n"),
    *CALL,
    said("\n"),
    *CUSTOM,
    CallBegun(2, "mcp__files__shell"),
    ArgumentsAdded(2, "{}"),
    said(""),
]


def test_all_events_are_openais() -> None:
    found = events(ALL)
    check(found)
    assert [each["type"].removeprefix("response.") for each in found] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done"),
        "output_item.done",
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    output = found[-1]["response"]["output"]
    assert [each["item"] for each in found if each["type"] == "response.output_item.done"] == output
    assert [each["output_index"] for each in found if "item" in each] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    ids = {each["output_index"]: each["item"]["id"] for each in found if "item" in each}
    assert all(each["item_id"] == ids[each["output_index"]] for each in found if "item_id" in each)
    assert len(set(ids.values())) == len(output)
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "think more"}]
    assert output[1]["content"][0]["text"] == "\n\nI look.\n"
    assert (output[2]["name"], output[2]["arguments"]) == ("shell", '{"cmd": "ls"}')
    assert (output[3]["type"], output[3]["name"], output[3]["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\n",
    )
    assert (output[4]["name"], output[4]["namespace"]) == ("shell", "mcp__files__")
    assert len({each["call_id"] for each in output[2:]}) == 3


def test_a_whole_response_is_the_last_event_of_its_stream() -> None:
    from openai.types.responses import Response

    parts = [ALL[0], ALL[1], ALL[3], *CALL, *CUSTOM]
    dialect = former()
    whole = dialect.whole([(message_of(parts), ChoiceEnd(StopReason.CALLS, None, TOLD))], USAGE)
    Response.model_validate_json(json.dumps(whole), strict=True)
    assert whole == events(parts)[-1]["response"]


def joined(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with all deltas in a row as one, and without their numbers."""
    told = list[dict[str, Any]]()
    for each in found:
        event = {name: value for name, value in each.items() if name not in ("sequence_number", "forerun")}
        if told and "delta" in event and told[-1]["type"] == event["type"]:
            told[-1]["delta"] += event["delta"]
        else:
            told.append(event)
    return told


@pytest.mark.parametrize("parts", [[], ALL, [ALL[0], ALL[3]], [said("a"), *CALL, said("b")]])
@pytest.mark.parametrize("finish", [StopReason.STOP, StopReason.LENGTH])
def test_a_kept_response_is_streamed_as_it_was(parts: list[MessagePart], finish: StopReason) -> None:
    found = events(parts, finish)
    last = found[-1]["response"]
    again = [parsed(frame) for frame in Responses.again(last)]
    check(again)
    assert [each["sequence_number"] for each in again] == list(range(len(again)))
    assert again[-1]["response"] == last
    assert joined(again) == joined(found)


REQUIRED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "object", "status", "model", "truncation", "service_tier"), (str,)),
    **dict.fromkeys(("created_at", "completed_at", "top_logprobs"), (int,)),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), (int, float)),
    **dict.fromkeys(("output", "tools"), (list,)),
    **dict.fromkeys(("text", "usage", "metadata"), (dict,)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), (bool,)),
    **dict.fromkeys(("previous_response_id", "instructions", "safety_identifier"), (str, type(None))),
    **dict.fromkeys(("incomplete_details", "error", "reasoning"), (dict, type(None))),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls"), (int, type(None))),
    "prompt_cache_key": (str, type(None)),
    "tool_choice": (str, dict),
}
"""Open Responses' fields of a completed response (its OpenAPI description, `ResponseResource`)."""


@pytest.mark.api
@pytest.mark.grpc
async def test_a_response_has_all_fields_of_open_responses_with_the_values_that_count() -> None:
    async with world() as found:
        found.describe(sampling_defaults=SamplingDefaults(temperature=0.5, top_p=0.9))
        response = await create(found, temperature=None, tools=[SHELL], reasoning={"effort": "low"})
        own = await create(found, temperature=0, top_p=0.3, reasoning={"summary": "auto"})
    for name, types in REQUIRED.items():
        assert isinstance(response[name], types), name
    assert (response["temperature"], response["top_p"]) == (0.5, 0.9)
    assert (own["temperature"], own["top_p"]) == (0, 0.3)
    assert set(response["tools"][0]) >= {"type", "name", "description", "parameters", "strict"}
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert own["reasoning"] == {"effort": None, "summary": "auto"}


def test_a_response_says_when_it_was_complete() -> None:
    done, cut = (events(CALL, finish)[-1]["response"] for finish in (StopReason.CALLS, StopReason.LENGTH))
    assert done["completed_at"] == done["created_at"] + 2
    assert cut["completed_at"] is None


def test_a_text_that_is_cut_off_is_incomplete() -> None:
    found = events([said("abc")], StopReason.LENGTH)
    check(found)
    assert found[-1]["type"] == "response.incomplete"
    response = found[-1]["response"]
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(400, "too long", code="context_length_exceeded"), "context_length_exceeded"),
        (ApiError(429, "full", retry_after=2.0), "rate_limit_exceeded"),
        (api_error(ValueError("a defect")), "server_error"),
        (ApiError(400, "no"), "invalid_prompt"),
    ],
)
def test_a_stream_that_breaks_off_says_why(error: ApiError, code: str) -> None:
    dialect = former()
    dialect.first(USAGE)
    dialect.added(CALL, {}, 0)
    (chunk,) = dialect.failed(error)
    found = parsed(dialect.framed(9, chunk))
    if code != "context_length_exceeded":  # Codex reads it, and OpenAI's types lack it
        check([found])
    assert found["response"]["status"] == "failed"
    assert found["response"]["error"]["code"] == code
    assert ("try again in 2s" in found["response"]["error"]["message"]) == (code == "rate_limit_exceeded")


@settings(max_examples=40)  # each event is held against a hundred types
@given(parts=messages(), finish=st.sampled_from(list(StopReason)))
def test_deltas_add_up_to_the_items(parts: list[MessagePart], finish: StopReason) -> None:
    found = events(parts, finish)
    check(found)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    told = dict[int, str]()
    for each in found:
        if "delta" in each:
            told[each["output_index"]] = told.get(each["output_index"], "") + each["delta"]
    for index, item in enumerate(found[-1]["response"]["output"]):
        written = item.get("content") or [{"text": item.get("arguments", item.get("input"))}]
        assert told.get(index, "") == written[0]["text"]


# Requests -------------------------------------------------------------------------------------------------


def turns(**fields: Any) -> list[dict[str, Any]]:
    prompt = read(**fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "r"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "shell", "arguments": '{"cmd": "ls"}'},
        {"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": "p"},
        {
            "type": "function_call",
            "call_id": "3",
            "name": "shell",
            "namespace": "mcp__files__",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "1", "output": "o"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "web_search_call", "id": "ws_1"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    functions = [("shell", {"cmd": "ls"}), ("apply_patch", {"input": "p"}), ("mcp__files__shell", {})]
    calls = [
        {"id": str(at), "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(functions, 1)
    ]
    assert turns(input=items, instructions="i") == [
        {"role": "system", "content": "i"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": calls},
        {"role": "tool", "content": "o", "tool_call_id": "1", "name": "shell"},
        {"role": "tool", "content": "q", "tool_call_id": "2", "name": "apply_patch"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]


@pytest.mark.parametrize(
    ("choice", "rule", "only", "names"),
    [
        (None, CallRule.AUTO, "", {"shell", "apply_patch", "mcp__files__shell"}),
        ("none", CallRule.NONE, "", {"shell", "apply_patch", "mcp__files__shell"}),
        ("required", CallRule.REQUIRED, "", {"shell", "apply_patch", "mcp__files__shell"}),
        ({"type": "custom", "name": "apply_patch"}, CallRule.REQUIRED, "apply_patch", {"apply_patch"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "shell"}]},
            CallRule.REQUIRED,
            "",
            {"shell"},
        ),
    ],
)
def test_tools_are_chosen(choice: Any, rule: CallRule, only: str, names: set[str]) -> None:
    prompt = read(tool_choice=choice, tools=[SHELL, PATCH, SPACE, {"type": "web_search"}]).prompt
    assert isinstance(prompt, ChatPrompt)
    tools = prompt.tools
    assert (tools.rule, tools.only) == (rule, only)
    assert names <= {each.name for each in tools.listed}
    assert tools.rule is CallRule.NONE or {each.name for each in tools.callable} == names


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": ["a"]}, "input[0]"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content",
    ),
    ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
    ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output"),
    ({"input": [{"type": "item_reference", "id": "msg_0_0"}]}, "input[0].id"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
    ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "never"}}, "tool_choice.mode"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"n": 2}, "n"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"store": "yes"}, "store"),
    ({"forerun": {"revise": True}}, "forerun.revise"),
    ({"previous_response_id": 3}, "previous_response_id"),
]


@pytest.mark.api
@pytest.mark.grpc
async def test_bad_fields_are_named() -> None:
    async with world() as found:
        for fields, param in BAD:
            answer = await post(found, **fields)
            assert answer.status_code in (400, 404), fields
            assert answer.json()["error"]["param"] == param, answer.text


# The daemon -----------------------------------------------------------------------------------------------


async def post(found: World, **fields: Any) -> httpx.Response:
    body = {"input": "abc", "max_output_tokens": 20, "temperature": 0, **fields}
    return await found.client.post("/v1/responses", json=body)


async def create(found: World, **fields: Any) -> dict[str, Any]:
    answer = await post(found, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@pytest.mark.parametrize("parts", [[], ALL[:1], ALL[3:4], CALL[:1], CUSTOM])
def test_origins_come_with_their_tokens(parts: list[MessagePart]) -> None:
    """Whatever item is open, if any. Other news of our own wait for the next event."""
    dialect = former()
    dialect.first(USAGE)
    assert dialect.added((), {"mode": "ahead", "notes": ["a"]}, 0) == []
    dialect.added(parts, {}, 0)
    (told,) = dialect.added((), {"origins": [["", "server", 2]], "notes": ["b"]}, 0)
    check([parsed(dialect.framed(9, told))])
    assert told["forerun"]["origins"] == [["", "server", 2]]
    assert told["forerun"]["notes"] == (["b"] if parts else ["a", "b"])
    assert told.get("delta", "") == ""


@pytest.mark.api
@pytest.mark.grpc
async def test_origins_add_up_to_all_tokens() -> None:
    async with world() as found:
        answer = await post(found, stream=True, forerun={"origins": True}, stop=["ab", "fe"])
    frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
    read = [parsed(frame.encode()) for frame in frames]
    check(read)
    origins = [each for event in read for each in event.get("forerun", {}).get("origins", ())]
    response = read[-1]["response"]
    assert "".join(each[0] for each in origins) == text_of(response)
    assert sum(each[2] for each in origins) == response["usage"]["output_tokens"]


@pytest.mark.api
@pytest.mark.grpc
async def test_a_conversation_goes_on_after_a_kept_response() -> None:
    async with world() as found:
        first = await create(found, instructions="f")
        second = await create(found, input="d", previous_response_id=first["id"])
        streamed = await post(found, input="e", previous_response_id=second["id"], stream=True)
        third = parsed(streamed.text.strip().split("\n\n")[-1].encode())["response"]
        fourth = await create(found, input="f", previous_response_id=third["id"])
        prompt = "abc"
        assert text_of(first) == alone("f" + prompt, temperature=0)
        for letter, response in (("d", second), ("e", third), ("f", fourth)):
            before = {"d": first, "e": second, "f": third}[letter]
            prompt += text_of(before) + letter
            assert text_of(response) == alone(prompt, temperature=0)
            assert response["previous_response_id"] == before["id"]
        assert (await found.client.get(f"/v1/responses/{third['id']}")).json() == third


@pytest.mark.api
@pytest.mark.grpc
async def test_a_kept_response_is_read_as_a_stream_from_any_event_on() -> None:
    async with world() as found:
        kept = await create(found, top_logprobs=1)
        path = f"/v1/responses/{kept['id']}"
        whole = await found.client.get(path, params={"stream": "true"})
        rest = await found.client.get(path, params={"stream": "true", "starting_after": "3"})
        wrong = await found.client.get(path, params={"stream": "true", "starting_after": "x"})
        plain = await found.client.get(path, params={"stream": "false"})
    assert whole.headers["content-type"].startswith("text/event-stream")
    frames = whole.text.strip().split("\n\n")
    read = [parsed(frame.encode()) for frame in frames]
    check(read)
    assert read[-1]["response"] == kept == plain.json()
    (delta,) = [each for each in read if each["type"] == "response.output_text.delta"]
    assert delta["logprobs"] == kept["output"][0]["content"][0]["logprobs"] != []
    assert rest.text.strip().split("\n\n") == frames[4:]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")


@pytest.mark.api
@pytest.mark.grpc
async def test_only_what_was_read_of_an_item_is_kept() -> None:
    junk = {"junk": "z" * 1000}
    part = {"type": "input_text", "text": "abc", **junk}
    opaque = {"type": "reasoning", "summary": [], "encrypted_content": "z" * 1000}
    search = {"type": "web_search_call", "id": "x", "status": "completed", **junk}
    async with world() as found:
        first = await create(found, input=[{"role": "user", "content": [part], **junk}, search, opaque])
        second = await create(found, input="d", previous_response_id=first["id"])
        told = await found.client.get(f"/v1/responses/{second['id']}/input_items?order=asc")
        none = await create(found, input=[search], instructions="abc")
        empty = (await found.client.get(f"/v1/responses/{none['id']}/input_items")).json()
    assert "zzz" not in told.text
    assert [each["content"][0]["text"] for each in told.json()["data"]] == ["abc", text_of(first), "d"]
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


@pytest.mark.api
@pytest.mark.grpc
async def test_what_is_not_kept_cannot_be_continued() -> None:
    async with world(resumes=False) as found:
        first = await create(found)
        assert (await post(found, previous_response_id=first["id"])).status_code == 404
    async with world() as found:
        unkept = await create(found, store=False)
        kept = await create(found)
        assert (await found.client.delete(f"/v1/responses/{kept['id']}")).json()["deleted"]
        for name in (unkept["id"], kept["id"], "resp_0"):
            answer = await post(found, previous_response_id=name)
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
            for method in ("GET", "DELETE"):
                assert (await found.client.request(method, f"/v1/responses/{name}")).status_code == 404


@pytest.mark.api
@pytest.mark.grpc
async def test_an_item_may_be_named_in_place_of_its_text() -> None:
    async with world() as found:
        first = await create(found)
        items = [
            {"role": "user", "content": "abc"},
            {"type": "item_reference", "id": first["output"][0]["id"]},
            {"role": "user", "content": "d"},
        ]
        second = await create(found, input=items)
        assert text_of(second) == alone("abc" + text_of(first) + "d", temperature=0)


@pytest.mark.grammar
def test_a_format_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    own = read(text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    assert own.sampling.grammar == json_schema_grammar(schema)
    assert own.form["told"]["text"]["format"]["schema"] == schema
    assert read(text={"format": {"type": "json_object"}}).sampling.grammar
    assert not read(text={"format": {"type": "text"}}).sampling.grammar
