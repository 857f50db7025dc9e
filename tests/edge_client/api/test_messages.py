"""Anthropic's Messages: what a conversation is for a chat template, and the events that parts become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.api_error import ApiError
from edge_client.formats.dialect import ChoiceEnd, StopReason, Usage
from edge_client.formats.fields import Fields
from edge_client.formats.message import ArgumentsAdded, CallBegun, Message, MessagePart
from edge_client.formats.parsed_request import CallRule, ChatPrompt
from tests.edge_client.formats.test_dialects import ENDED, said, streamed, thought
from tests.edge_client.formats.test_dialects import messages_dialect as formed

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "abc"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
TOOL: Json = {"name": "f", "description": "d", "input_schema": SCHEMA}
CALL: Json = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "a"}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "t1", "content": "b"}
CALLED: Json = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": "a"}}}],
}


def chat(**body: Any) -> ChatPrompt:
    """What a request asks the template for."""
    prompt = AnthropicMessages.parse(Fields({"messages": [USER], **body})).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def text(*texts: str) -> list[Json]:
    return [{"type": "text", "text": each, "cache_control": {"type": "ephemeral"}} for each in texts]


CONVERSATIONS: dict[str, tuple[list[Json], list[Json]]] = {
    "text": ([{"role": "user", "content": text("a", "b")}], [{"role": "user", "content": "a\n\nb"}]),
    "a call and its result": (
        [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}],
        [USER, CALLED, {"role": "tool", "content": "b", "tool_call_id": "t1", "name": "f"}],
    ),
    "reasoning comes back": (
        [
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "xyz"},
                    *text("a"),
                ],
            },
            USER,
        ],
        [USER, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, USER],
    ),
    "an error and what the user says beside it": (
        [
            USER,
            {"role": "assistant", "content": [*text("a"), CALL]},
            {"role": "user", "content": [{**RESULT, "content": text("b"), "is_error": True}, *text("go on")]},
        ],
        [
            USER,
            {**CALLED, "content": "a"},
            {"role": "tool", "content": "Error: b", "tool_call_id": "t1", "name": "f"},
            {"role": "user", "content": "go on"},
        ],
    ),
    "turns of one role are one message": (
        [
            USER,
            {"role": "user", "content": "d"},
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [RESULT]},
        ],
        [
            {"role": "user", "content": "abc\n\nd"},
            {**CALLED, "content": "a"},
            {"role": "tool", "content": "b", "tool_call_id": "t1", "name": "f"},
        ],
    ),
    "what only Anthropic's servers read": (
        [
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                    *text("a"),
                ],
            },
            USER,
        ],
        [USER, {"role": "assistant", "content": "a"}, USER],
    ),
    "a system message between turns": (
        [USER, {"role": "system", "content": text("be brief"), "output_config": {"effort": "low"}}],
        [{"role": "user", "content": "abc\n\n<system-reminder>\nbe brief\n</system-reminder>"}],
    ),
    "a system message before all turns": (
        [{"role": "system", "content": "be brief"}, USER],
        [{"role": "system", "content": "be brief"}, USER],
    ),
    "a system message for one turn": (
        [
            USER,
            {"role": "system", "content": "be brief", "clear_at": "next_user_message"},
            {"role": "assistant", "content": "a"},
            USER,
        ],
        [USER, {"role": "assistant", "content": "a"}, USER],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_becomes_messages_of_a_template(name: str) -> None:
    turns, expected = CONVERSATIONS[name]
    assert chat(messages=turns).messages == expected


@pytest.mark.parametrize("system", ["be brief", text("be brief"), text("be", "brief")], ids=str)
def test_the_system_prompt_comes_first(system: Any) -> None:
    first = chat(system=system).messages[0]
    assert first["role"] == "system"
    assert first["content"].split() == ["be", "brief"]


BILLING = "x-anthropic-billing-header: cc_version=2.1.330.{}; cc_entrypoint=sdk-cli; cch={};"


@pytest.mark.parametrize("is_block", [True, False])
def test_what_claude_code_changes_in_every_request_is_no_part_of_the_prompt(is_block: bool) -> None:
    """A prefix cache would never match behind such a line."""

    def system(*values: str) -> Any:
        line = BILLING.format(*values)
        return text(line, "be brief") if is_block else f"{line}\nbe brief"

    told = [chat(system=system(*values)).messages for values in (("f89", "0aaa9"), ("c11", "36ee5"))]
    assert told[0] == told[1] == [{"role": "system", "content": "be brief"}, USER]
    assert chat(system=text(BILLING)).messages == [USER]
    quoted = f"see {BILLING}"
    assert chat(system=quoted).messages[0]["content"] == quoted


@pytest.mark.parametrize(
    ("choice", "rule", "only", "parallel"),
    [
        (None, CallRule.AUTO, "", True),
        ({"type": "auto"}, CallRule.AUTO, "", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, CallRule.AUTO, "", False),
        ({"type": "any"}, CallRule.REQUIRED, "", True),
        ({"type": "tool", "name": "f"}, CallRule.REQUIRED, "f", True),
        ({"type": "none"}, CallRule.NONE, "", True),
    ],
    ids=str,
)
def test_tools_and_how_they_may_be_called(choice: Any, rule: CallRule, only: str, parallel: bool) -> None:
    server = {"type": "web_search_20260318", "name": "web_search", "max_uses": 3}
    tools = chat(tools=[TOOL, server], tool_choice=choice).tools
    assert [each.to_json()["function"] for each in tools.listed] == [
        {"name": "f", "description": "d", "parameters": SCHEMA}
    ]
    assert (tools.rule, tools.only, tools.parallel) == (rule, only, parallel)


LATER = {**TOOL, "name": "g", "defer_loading": True}


@pytest.mark.parametrize(
    "loading",
    [
        {"role": "user", "content": [{**RESULT, "content": [{"type": "tool_reference", "tool_name": "g"}]}]},
        {
            "role": "system",
            "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "g"}}],
        },
    ],
    ids=["tool_reference", "tool_addition"],
)
def test_a_tool_that_is_loaded_later_is_described_where_it_is_loaded(loading: Json) -> None:
    """The list of tools stands at the beginning of a prompt, so it must not grow."""
    begun = [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]
    before = chat(messages=begun, tools=[TOOL, LATER])
    after = chat(messages=[*begun[:2], loading], tools=[LATER, TOOL])
    assert [tool.name for tool in before.tools.callable] == ["f"]
    assert [(tool.name, tool.in_messages) for tool in after.tools.callable] == [("f", False), ("g", True)]
    assert after.messages[:2] == before.messages[:2]
    assert '"name": "g"' in after.messages[-1]["content"]


ON, OFF = ({"enable_thinking": each} for each in (True, False))


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ON),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, ON),
        ({"output_config": {"effort": "max"}}, {**ON, "reasoning_effort": "high"}),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "disabled"}}, OFF),
    ],
    ids=str,
)
def test_thinking_switches_the_templates_reasoning(fields: Json, settings: Json) -> None:
    assert chat(**fields).settings == settings


@pytest.mark.grammar
@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_format_is_a_grammar(name: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    body = {"messages": [USER], name: {"format": form} if name == "output_config" else form}
    assert AnthropicMessages.parse(Fields(body)).sampling.grammar


def content(*blocks: Any) -> list[Json]:
    return [{"role": "user", "content": list(blocks)}]


WRONG: list[tuple[Json, str]] = [
    ({"messages": None}, "messages"),
    ({"messages": ["abc"]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": content("abc")}, "messages[0].content[0]"),
    ({"messages": content({"type": "text"})}, "messages[0].content[0].text"),
    ({"messages": content({"type": "image", "source": {}})}, "messages[0].content[0].type"),
    ({"messages": content({"type": "tool_reference", "tool_name": "f"})}, "messages[0].content[0].type"),
    ({"messages": content({**RESULT, "content": [3]})}, "messages[0].content[0].content[0]"),
    ({"messages": content({"text": "hi"})}, "messages[0].content[0].type"),
    ({"messages": [USER, {"role": "assistant", "content": [{**CALL, "input": "a"}]}, USER]},
     "messages[1].content[0].input"),
    ({"messages": [USER, {"role": "assistant", "content": "a"}]}, "messages"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"tools": [{"description": "d"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "input_schema": "a"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ({"stop_sequences": "a" * 1000}, "stop_sequences"),
    ({"thinking": {}}, "thinking.type"),
    ({"output_config": {"effort": "some"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"n": 2}, "n"),
]  # fmt: skip


@pytest.mark.grammar
def test_a_format_and_a_grammar_exclude_each_other() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    body = {"messages": [USER], "output_config": {"format": form}, "forerun": {"regex": "a+"}}
    with pytest.raises(ApiError) as refused:
        AnthropicMessages.parse(Fields(body))
    assert refused.value.param == "output_config.format"


@pytest.mark.parametrize(("body", "param"), WRONG, ids=str)
def test_what_is_wrong_is_refused_by_its_field(body: Json, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        AnthropicMessages.parse(Fields({"messages": [USER], **body}))
    assert (refused.value.status, refused.value.param) == (400, param)
    assert param in str(refused.value)


# Responses --------------------------------------------------------------------------------------------------


PARTS: list[MessagePart] = [
    thought("let me"), thought(" see"), said("\n"), said("\n"), said(""), said("I look"), said(" it up"),
    CallBegun(0, "f"), ArgumentsAdded(0, '{"x":'), ArgumentsAdded(0, ' "a"}'), said("\n"),
    CallBegun(1, "g"), ArgumentsAdded(1, ""), ArgumentsAdded(1, "{}"),
]  # fmt: skip

ABSENT = {"container": None, "stop_details": None}


def assembled(chunks: Sequence[Json]) -> list[Json]:
    """The blocks that a client puts together. Asserts the order of events."""
    kinds = [chunk["type"] for chunk in chunks]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    blocks, is_open = list[Json](), False
    for chunk in chunks[1:-2]:
        match chunk["type"]:
            case "content_block_start":
                assert not is_open
                assert chunk["index"] == len(blocks)
                blocks.append({**chunk["content_block"], "given": ""})
            case "content_block_delta":
                assert is_open
                assert chunk["index"] == len(blocks) - 1
                (_, (name, value)) = chunk["delta"].items()
                if name == "signature":
                    blocks[-1]["signature"] = value
                else:
                    blocks[-1]["given"] += value
            case "content_block_stop":
                assert is_open
                assert chunk["index"] == len(blocks) - 1
            case kind:
                raise AssertionError(kind)
        is_open = chunk["type"] != "content_block_stop"
    assert not is_open
    return blocks


def test_parts_become_blocks() -> None:
    chunks = streamed(formed(), [PARTS], usage=Usage(prompt=10, cached=4, text=8, reasoning=2))
    assert [(each["type"], each["given"]) for each in assembled(chunks)] == [
        ("thinking", "let me see"),
        ("text", "\n\nI look it up"),
        ("tool_use", '{"x": "a"}'),
        ("tool_use", "{}"),
    ]
    blocks = assembled(chunks)
    assert blocks[0]["signature"], "some clients send only signed reasoning back"
    assert [(each["name"], each["input"]) for each in blocks[2:]] == [("f", {}), ("g", {})]
    assert len({each["id"] for each in blocks[2:]}) == 2
    assert chunks[0]["message"]["usage"]["input_tokens"] == 10
    last = chunks[-2]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, **ABSENT}
    usage = last["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (6, 4, 8)
    assert last["forerun"] == ENDED.ours


@pytest.mark.parametrize(
    ("finish", "stopped_by", "num_tokens", "reason"),
    [
        (StopReason.STOP, None, 3, "end_turn"),
        (StopReason.STOP, "ab", 3, "stop_sequence"),
        (StopReason.CALLS, None, 3, "tool_use"),
        (StopReason.LENGTH, None, 9, "max_tokens"),
        (StopReason.LENGTH, None, 8, "model_context_window_exceeded"),
    ],
)
def test_why_a_text_ended(finish: StopReason, stopped_by: str | None, num_tokens: int, reason: str) -> None:
    end, usage = ChoiceEnd(finish, stopped_by, {}), Usage(prompt=1, text=num_tokens)
    delta = streamed(formed(), [], end, usage)[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": stopped_by, **ABSENT}
    assert formed().whole([(Message(), end)], usage)["stop_reason"] == reason


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_have_anthropics_types(status: int, kind: str) -> None:
    told = AnthropicMessages.error(ApiError(status, "words"))
    assert told == {"type": "error", "error": {"type": kind, "message": "words"}}
    assert formed().failed(ApiError(status, "words")) == [told]
