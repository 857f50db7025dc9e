"""Every family's chat template takes the conversations of coding agents, also those that refuse much."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.call_style import call_style
from edge_client.formats.dialect import Dialect
from edge_client.formats.families import family_of
from edge_client.formats.fields import Fields
from edge_client.formats.parsed_request import ChatPrompt
from edge_client.formats.responses import Responses
from edge_client.formats.turn_order import TurnOrder, is_plain, one_call_each
from tests.edge_client.api.world import world
from tests.edge_client.formats.call_templates import REAL, family, needs_templates

pytestmark = pytest.mark.api

Json = dict[str, Any]


def said(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": text}


CALL = {"type": "function_call", "call_id": "call_0001", "name": "shell", "arguments": '{"cmd": "ls"}'}
RESULT = {"type": "function_call_output", "call_id": "call_0001", "output": "text-4"}
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {"cmd": {}}}}
CODEX: Json = {
    "instructions": "text-0",
    "input": [
        said("developer", "text-1"),
        said("user", "text-2"),
        said("user", "text-3"),
        CALL,
        RESULT,
        said("user", "text-5"),  # who had broken off the turn
        said("assistant", "text-6"),
        said("developer", "text-7"),
        said("user", "text-8"),
    ],
    "tools": [SHELL],
}
USE = {"type": "tool_use", "id": "toolu_0001", "name": "shell", "input": {"cmd": "ls"}}
LOADING = [{"type": "text", "text": "text-2"}, {"type": "tool_reference", "tool_name": "later"}]
CLAUDE_CODE: Json = {
    "system": "text-0",
    "messages": [
        {"role": "user", "content": "text-1"},
        {"role": "assistant", "content": [USE]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_0001", "content": LOADING},
                {"type": "text", "text": "text-3"},
            ],
        },
        {"role": "assistant", "content": "text-4"},
        {"role": "user", "content": "text-5"},
    ],
    "tools": [
        {"name": "shell", "input_schema": SHELL["parameters"]},
        {"name": "later", "input_schema": {}, "defer_loading": True},
    ],
}


def rendered(name: str, dialect: type[Dialect], body: Json) -> str:
    """The prompt of a request, without the mark at which the answer begins."""
    found = family(name)
    prompt = dialect.parse(Fields(body)).prompt
    assert isinstance(prompt, ChatPrompt)
    tools = [each.to_json() for each in prompt.tools.listed]
    shown = call_style(found.template, found.controls).shown(prompt.messages, tools)
    source, settings = found.template.source, {"tools": tools, "add_generation_prompt": False}
    return found.template.render(family_of(source).messages(source, shown, {}), settings)


@needs_templates
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    ("dialect", "body", "count"), [(Responses, CODEX, 9), (AnthropicMessages, CLAUDE_CODE, 6)]
)
def test_the_turns_of_agents_are_rendered_in_their_order(
    name: str, dialect: type[Dialect], body: Json, count: int
) -> None:
    text = rendered(name, dialect, body)
    places = [text.find(f"text-{number}") for number in range(count)]
    assert -1 not in places
    assert places == sorted(places)


TWO_CALLS: Json = {
    "input": [
        said("user", "go"),
        {**CALL, "arguments": '{"cmd": "text-0"}'},
        {**CALL, "call_id": "call_0002", "arguments": '{"cmd": "text-1'},  # its text was cut off
        {**RESULT, "output": "text-2"},
        {**RESULT, "call_id": "call_0002", "output": "text-3"},
    ],
}


@needs_templates
@pytest.mark.parametrize("name", REAL)
def test_a_conversation_with_another_model_goes_on(name: str) -> None:
    """That one wrote two calls at once, which some templates refuse, and arguments that are no object."""
    text = rendered(name, Responses, TWO_CALLS)
    assert {f"text-{number}" for number in range(4)} <= set(re.findall(r"text-\d", text))
    assert text.find("text-0") < text.find("text-2") < text.find("text-3")
    assert text.find("text-1") < text.find("text-3")


STEADY = ("llama3.1", "mistral-small", "gemma4", "glm4.5", "deepseek-v3", "gemma3")
"""Templates that write an earlier turn as before. Qwen's and gpt-oss' drop its thoughts, and Mistral 7B's has
the tools before the last turn."""


@needs_templates
@pytest.mark.grpc
@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize(
    ("dialect", "body", "turns", "counts"),
    [(Responses, CODEX, "input", (3, 7, 9)), (AnthropicMessages, CLAUDE_CODE, "messages", (1, 3, 5))],
)
async def test_the_next_prompt_begins_with_the_one_before(
    name: str, dialect: type[Dialect], body: Json, turns: str, counts: Sequence[int]
) -> None:
    """Also if a turn loads a tool."""
    async with world(template=family(name).template.source) as found:
        told = list[str]()
        for count in counts:
            prompt = dialect.parse(Fields({**body, turns: body[turns][:count]})).prompt
            assert isinstance(prompt, ChatPrompt)
            prompt.settings["add_generation_prompt"] = False
            told.append(await found.api.pairs.first.render(prompt))
    assert all(after.startswith(before) for before, after in pairwise(told))


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "call", "tool"]), st.sampled_from("abc")),
    max_size=10,
)


def message_of(role: str, text: str) -> Json:
    calls = {"tool_calls": [{"id": text}]} if role == "call" else {}
    return {"role": "assistant" if calls else role, "content": text, **calls}


@given(MESSAGES)
def test_each_call_is_alone_and_nothing_is_lost(given_ones: list[tuple[str, str]]) -> None:
    messages = [message_of(*each) for each in given_ones]
    messages = [
        {**each, "tool_calls": each["tool_calls"] * 2} if "tool_calls" in each else each for each in messages
    ]
    shown = one_call_each(messages)
    told = [each["content"] for each in shown if each["content"] or "tool_calls" not in each]
    assert sorted(told) == sorted(each["content"] for each in messages)
    assert all(len(each.get("tool_calls", "1")) == 1 for each in shown)


@given(MESSAGES, st.booleans(), st.booleans(), st.booleans())
def test_nothing_is_lost_and_nothing_stands_where_it_is_refused(
    given_ones: list[tuple[str, str]], later_systems: bool, one_role: bool, user_after_tool: bool
) -> None:
    messages = [message_of(*each) for each in given_ones]
    shown = TurnOrder(later_systems, one_role, user_after_tool).shown(messages)
    places = iter("".join(each["content"].removeprefix("Done.") for each in shown))
    assert all(each["content"] in places for each in messages)
    assert sum(len(each.get("tool_calls", ())) for each in shown) == sum(
        len(each.get("tool_calls", ())) for each in messages
    )
    roles = [each["role"] for each in shown]
    assert later_systems or "system" not in roles[1:]
    assert one_role or not {("user", "user"), ("assistant", "assistant")} & set(pairwise(roles))
    assert user_after_tool or ("tool", "user") not in pairwise(roles)
    if later_systems and one_role and user_after_tool:
        assert shown == messages


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["user"], True),
        (["system", "user", "assistant", "user"], True),
        (["user", "user"], False),
        (["system", "system", "user"], False),
        (["user", "assistant", "system"], False),
        (["user", "call"], False),
        (["user", "tool"], False),
    ],
)
def test_plain_messages_need_no_knowledge_of_the_template(roles: list[str], expected: bool) -> None:
    assert is_plain([message_of(role, "a") for role in roles]) is expected
