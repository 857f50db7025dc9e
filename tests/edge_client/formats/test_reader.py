"""Reasoning, content and calls are told apart, wherever a text is cut."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import TokenLogprobs
from edge_client.formats.call_values import properties_of, types_of
from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.formats.families import family_of, marks_of, short_id
from edge_client.formats.json_scanner import JsonScanner
from edge_client.formats.message import ArgumentsAdded, CallBegun, ContentAdded, Message, MessageForm
from edge_client.formats.message_reader import MessageReader
from tests.edge_client.formats.written_messages import (
    GEMMA_4,
    GLM,
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NEW,
    SAMPLES,
    TOOLS,
    Json,
    Sample,
    response_template,
)


def form_of(sample: Sample, tools: Sequence[Json] = TOOLS) -> MessageForm:
    return replace(sample.form, prefix=sample.prefix, tools=tools)


def read(form: MessageForm, *texts: str, is_cut: bool = False) -> Message:
    """The whole message, of which each text is a token."""
    reader, message = MessageReader(form), Message()
    for token, text in enumerate(texts):
        message.add(reader.feed([TextSpan(text, TokenOrigin.SERVER, 1, token)]))
    message.add(reader.finish(is_cut))
    return message


def so_far(form: MessageForm, *texts: str) -> Any:
    """What is certain of a message before its end."""
    reader, message = MessageReader(form), Message()
    for text in texts:
        message.add(reader.feed([TextSpan(text, None)]))
    return said(message), reader.num_reasoning > 0


def said(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.text, message.thought, [(each.name, each.arguments) for each in message.calls]


def calls_of(message: Message) -> list[tuple[str, Any]]:
    return [(each.name, json.loads(each.arguments)) for each in message.calls]


@pytest.mark.parametrize("name", SAMPLES)
def test_each_family_is_read(name: str) -> None:
    sample = SAMPLES[name]
    found = read(form_of(sample), *sample.text)
    assert (found.text, found.thought, calls_of(found)) == (sample.content, sample.thought, sample.calls)


@pytest.mark.torch
@pytest.mark.parametrize("name", SAMPLES)
def test_transformers_reads_the_same(name: str) -> None:
    from transformers.utils.chat_parsing import parse_response

    sample = SAMPLES[name]
    template = response_template(sample.form)
    found = parse_response(sample.text, template, prefix=sample.prefix, tools=list(TOOLS))
    calls = found.get("tool_calls") or []
    functions = [each["function"] for each in (calls if isinstance(calls, list) else [calls])]
    assert found.get("content", "") == sample.content
    assert found.get("reasoning_content", "") == sample.thought
    assert [(each["name"], each["arguments"]) for each in functions] == sample.calls


# Cuts -------------------------------------------------------------------------------------------------------

MARKS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', '{"a": "b"}', "}"),
    *(
        "[TOOL_CALLS]",
        "[{",
        "]",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        " \n",
        "x",
        '"',
    ),
    *("<|channel|>", "analysis", "final", "commentary to=functions.f", "<|message|>", "<|end|>", "<|call|>"),
    *(
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>f\n```json\n",
        "\n```",
        "<｜tool▁call▁end｜>",
        "<arg_key>",
    ),
    *(
        "<|tool_call>call:f",
        '{a:<|"|>',
        '<|"|>}',
        "<tool_call|>",
        "<|channel>thought\n",
        "<channel|>",
        "</s>",
    ),
]


@settings(max_examples=150)
@given(
    sample=st.sampled_from(sorted(SAMPLES)),
    parts=st.lists(st.sampled_from(MARKS), max_size=8),
    place=st.integers(0, 200),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    end=st.integers(0, 400),
)
def test_what_is_read_does_not_depend_on_the_cuts(
    sample: str, parts: list[str], place: int, cuts: list[int], end: int
) -> None:
    """A text goes on after a restart with all of it in one piece, so this holds at every place."""
    form, text = form_of(SAMPLES[sample]), SAMPLES[sample].text
    text = text[:place] + "".join(parts) + text[place:]
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert said(read(form, *pieces)) == said(read(form, text))
    begun = text[:end]
    pieces = [begun[a:b] for a, b in zip(places, [*places[1:-1], None], strict=False)]
    assert so_far(form, *pieces) == so_far(form, begun) == so_far(form, *begun)


@given(parts=st.lists(st.sampled_from([*MARKS, "Hi", "é"]), max_size=10))
def test_without_tools_and_reasoning_a_text_is_content_as_it_is(parts: list[str]) -> None:
    text = "".join(parts)
    for source in ("<tool_call>", "[TOOL_CALLS]", "", "<start_of_turn>"):
        found = read(family_of(source).form(source), *parts)
        assert (found.text.removesuffix("</s>"), found.calls) == (text.removesuffix("</s>"), [])
    assert read(MessageForm(), *parts).text == text


@pytest.mark.parametrize("name", SAMPLES)
def test_a_text_that_is_cut_off_shows_no_part_of_a_mark_or_of_a_call(name: str) -> None:
    sample = SAMPLES[name]
    whole = read(form_of(sample), sample.text)
    for end in range(len(sample.text)):
        begun = sample.text[:end]
        found = read(form_of(sample), *begun, is_cut=True)
        assert sample.content.startswith(found.text.strip()), begun
        assert sample.thought.startswith(found.thought.strip()), begun
        assert [each.name for each in whole.calls][: len(found.calls)] == [each.name for each in found.calls]


def test_a_text_that_is_cut_off_keeps_what_begins_no_mark() -> None:
    found = read(form_of(SAMPLES["hermes"]), "if a < b and {", is_cut=True)
    assert found.text == "if a < b and {"


# Calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (HERMES, "Hi \n<tool_call>\nget_weather(1)\n</tool_call> so"),
        (HERMES, '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get_weath'),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>'),
        (HERMES, 'So: ```json\n{"name": "get_weather", "arguments": {}}\n```'),
        (HERMES, '```json\n{"name": "get_snow", "arguments": {}}\n``` so'),
        (HERMES, '{"name": "Bob", "arguments": {"age": 3}}'),
        (HERMES, '```json\n{"name": "get_weather", "version": 3}'),
        (HERMES, '```python\n{"name": "get_weather"}\n```'),
        (LLAMA, '{"name": "Bob", "age": 3}'),
        (LLAMA, "<|python_tag|>print(1)"),
        (MISTRAL, "[TOOL_CALLS] get_weather"),
        ("<arg_key>", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par"),
        ("<arg_key>", "<tool_call>get_weather<arg_key>city</arg_key>"),
        (
            "<function=",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=",
        ),
        ("<|tool_call>call:", "<|tool_call>call:get_weather{city:Paris}<tool_call|>"),
        (GEMMA_4, "<|tool_call>call:get_weather{days:NaN}<tool_call|>"),
        (HERMES, r'<tool_call>{"name": "get_weather\ud83d", "arguments": {}}</tool_call>'),
        (MISTRAL, r'[TOOL_CALLS] [{"name": "\udc00", "arguments": {}}]'),
    ],
)
def test_what_is_no_call_is_content_as_it_is(source: str, text: str) -> None:
    found = read(replace(family_of(source).form(source), tools=TOOLS), *text)
    assert (found.text, found.calls) == (text, [])


def test_a_call_is_told_while_it_is_written() -> None:
    reader = MessageReader(form_of(SAMPLES["hermes"]))
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Par'
    begun = reader.feed([TextSpan(text, None)])
    assert begun == [CallBegun(0, "get_weather"), ArgumentsAdded(0, '{"city": "Par')]
    assert reader.feed([TextSpan('is"', None)]) == [ArgumentsAdded(0, 'is"')]
    assert reader.feed([TextSpan("}}\n</tool_call>Hi", None)])[0] == ArgumentsAdded(0, "}")


def test_an_end_mark_within_a_string_ends_no_call() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>"}}</tool_call>Hi'
    found = read(form_of(SAMPLES["hermes"]), text)
    assert (found.text, calls_of(found)) == ("Hi", [("get_weather", {"city": "</tool_call>"})])


def test_what_follows_a_broken_call_is_content() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": oops}}</tool_call>'
    found = read(form_of(SAMPLES["hermes"]), text)
    assert said(found) == ("oops}}</tool_call>", "", [("get_weather", '{"city": ')])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"days": "3.0"}', {"days": 3}),
        ('{"days": "three"}', {"days": "three"}),
        ('{"exact": "True", "city": "3"}', {"exact": True, "city": "3"}),
        ('{"exact": "null", "at": "[1]"}', {"exact": None, "at": [1]}),
        ('"{\\"days\\": 3}"', {"days": 3}),
        ("null", {}),
        ('{"at": {"days": "3"}}', {"at": {"days": "3"}}),
        ('{"days": "1e999", "at": "[NaN]"}', {"days": "1e999", "at": "[NaN]"}),
        ('{"at": "[1e999]"}', {"at": [None]}),
        ('{"at": "[\\"\\\\ud83d\\"]"}', {"at": ["\ud83d"]}),
        ('"NaN"', "NaN"),
    ],
)
def test_values_get_the_types_of_the_schema(written: str, expected: Json) -> None:
    for text in (
        f'<tool_call>{{"name": "get_weather", "arguments": {written}}}</tool_call>',
        f'<tool_call>{{"arguments": {written}, "name": "get_weather"}}</tool_call>',
    ):
        assert calls_of(read(form_of(SAMPLES["hermes"]), *text)) == [("get_weather", expected)]


def properties(schema: Json, **defs: Json) -> Json:
    parameters = {"properties": schema, "$defs": defs}
    found = properties_of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    return {name: types_of(each) for name, each in found["f"].items()}


def test_the_types_behind_references_are_known() -> None:
    a, b = {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}
    found = properties(
        {"a": a, "c": {"anyOf": [a, {"type": ["array", "array"]}]}, "d": {"type": "integer"}},
        a={"anyOf": [{"type": "integer"}, b]},
        b={"oneOf": [{"enum": [True, False]}, a], "nullable": True},
    )
    assert found == {
        "a": ["integer", "boolean", "null"],
        "c": ["integer", "boolean", "null", "array"],
        "d": ["integer"],
    }


def test_the_types_of_tools_take_time_in_proportion_to_their_size() -> None:
    begun = time.thread_time()
    reference: Json = {"$ref": "#/$defs/x"}
    schema: Json = {f"a{place}": {"anyOf": [reference]} for place in range(20_000)}
    assert properties(schema, x={"anyOf": [{"type": "integer"}] * 20_000})["a7"] == ["integer"]
    chain: Json = {f"x{place}": {"$ref": f"#/$defs/x{place + 1}"} for place in range(5000)}
    assert properties({"a": {"$ref": "#/$defs/x0"}}, **chain) == {}
    assert time.thread_time() - begun < 3


def test_a_listed_tool_needs_no_arguments() -> None:
    text = '<tool_call>{"name": "get_weather"}</tool_call>'
    assert calls_of(read(form_of(SAMPLES["hermes"]), text)) == [("get_weather", {})]


@given(st.text(st.sampled_from('{}[]",:\\ntrue01-.eE u'), max_size=12) | st.text('"\\u0a\x01é/', max_size=9))
def test_json_is_taken_as_far_as_it_is_valid(text: str) -> None:
    scanner = JsonScanner()
    is_valid = all(map(scanner.feed, f"[{text}]")) and scanner.is_whole
    try:
        json.loads(f"[{text}]", parse_constant=lambda word: 1 / 0)
        expected = True
    except (ValueError, ZeroDivisionError):
        expected = False
    assert is_valid == expected


# Spans ------------------------------------------------------------------------------------------------------


def test_spans_keep_their_origins_tokens_and_logprobs() -> None:
    logprobs = TokenLogprobs(-0.5)
    spans = [
        TextSpan("<think>a", TokenOrigin.DRAFTED, 1, 1),
        TextSpan("b</think>H", TokenOrigin.SERVER, 1, 2, logprobs),
        TextSpan("", TokenOrigin.DEVICE, 1, 3),
        TextSpan("i<", TokenOrigin.DEVICE, 1, 4, logprobs),
        TextSpan("x", TokenOrigin.DRAFTED, 1, 5),
    ]
    reader, message = MessageReader(form_of(SAMPLES["hermes"])), Message()
    for span in spans:
        message.add(reader.feed([span]))
    message.add(reader.finish())
    assert [(each.text, each.token) for each in message.reasoning] == [("a", 1), ("b", 2)]
    shown = [(each.text, each.origin, each.num_tokens, each.token) for each in message.content]
    assert shown == [
        ("H", TokenOrigin.SERVER, 0, None),  # the token was shown with the reasoning
        ("", TokenOrigin.DEVICE, 1, 3),
        ("i", TokenOrigin.DEVICE, 1, 4),
        ("<", TokenOrigin.DEVICE, 0, None),
        ("x", TokenOrigin.DRAFTED, 1, 5),
    ]
    assert reader.num_reasoning == 2


def test_white_space_counts_in_a_text_without_regions_only() -> None:
    form = form_of(SAMPLES["hermes"])
    assert read(form, " \n", "a ", "\n").text == " \na \n"
    assert read(form, "<think>\n\na\n</think>", "\n\n", " b\n").text == "b"
    call = '\n<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>\n'
    assert read(form, "a", call, "b").text == "a\nb"


# Time and size --------------------------------------------------------------------------------------------


def cost_of(form: MessageForm, *texts: str) -> float:
    """Seconds of a processor for the reading of a text, of which each part is a token."""
    begun = time.thread_time()
    read(form, *texts)
    return time.thread_time() - begun


@pytest.mark.parametrize(
    "body",
    [
        '{"' + '\\"' * 40_000,
        "{" + ',"a\\' * 30_000,
        "{" + "a" * 90_000,
        "{a" + " " * 90_000,
        '{a:<|"|>' * 10_000,
        '{"' + '<|"|>\\"' * 10_000,
    ],
)
def test_a_call_without_an_end_is_read_in_linear_time(body: str) -> None:
    text = f"<|tool_call>call:f{body}"
    form = form_of(SAMPLES["gemma 4"])
    for end in ("", "<tool_call|>"):
        assert cost_of(form, *(text[at : at + 4] for at in range(0, len(text), 4)), end) < 8
    assert said(read(form, text))[2] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma 4", "<|tool_call>call:" + "f" * 30_000),
        ("qwen 3.5", "<tool_call>" + " " * 30_000),
        ("qwen 3.5", "<tool_call><function=f>" + "<parameter=a>" * 2_500),
        ("glm 4.5", "<tool_call>f" + "<arg_key>a</arg_key>" * 1_500),
        ("deepseek r1", " " * 20_000 + "```" + " " * 9_000),
        ("deepseek v4", '<｜DSML｜invoke name="f">' + '<｜DSML｜parameter name="' * 1_500),
        ("hermes", "{" + " " * 30_000),
    ],
)
def test_a_text_without_an_end_is_read_in_linear_time(name: str, text: str) -> None:
    form = form_of(SAMPLES[name])
    assert cost_of(form, *(text[at : at + 4] for at in range(0, len(text), 4))) < 4
    assert said(read(form, text))[2] == []


def test_a_mark_behind_one_that_is_too_long_counts() -> None:
    text = f"<|tool_call>call:{'f' * 600}<|tool_call>call:get_weather{{days:3}}<tool_call|>"
    assert calls_of(read(form_of(SAMPLES["gemma 4"]), *text)) == [("get_weather", {"days": 3})]


def test_a_prompts_end_belongs_to_the_message() -> None:
    marks = marks_of(family_of(HERMES).form(HERMES))
    assert marks.prefix("<|im_start|>assistant\nx<|im_end|><|im_start|>assistant\n<think>\n") == "<think>\n"
    assert marks.prefix("no mark") == ""
    assert marks.prefix("[a] <think>\n") == "<think>\n"


# Families ---------------------------------------------------------------------------------------------------


def test_ids_of_calls_are_short_and_alike_for_mistral() -> None:
    messages: list[Json] = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0123456789_0_0"}, {"id": "abcdefghi"}],
        },
        {"role": "tool", "content": "", "tool_call_id": "call_0123456789_0_0"},
    ]
    first, second = family_of(MISTRAL).messages(MISTRAL, messages, {})
    ids = [each["id"] for each in first["tool_calls"]]
    assert ids == [short_id("call_0123456789_0_0"), "abcdefghi"]
    assert second["tool_call_id"] == ids[0]
    assert len(ids[0]) == 9
    assert ids[0].isalnum()
    assert family_of(HERMES).messages(HERMES, messages, {}) == messages


def test_gpt_oss_gets_thoughts_and_content_of_a_call_as_one() -> None:
    """Its template takes only one of both with a call, and shows thoughts only with calls."""
    said: Json = {"role": "assistant", "content": "I look.", "reasoning_content": "hm"}
    called: Json = {**said, "tool_calls": [{"id": "a"}]}
    found = family_of(HARMONY).messages("", [said, called], {})
    assert found == [said, {**called, "content": "", "thinking": "hm\n\nI look."}]


@pytest.mark.parametrize(
    ("source", "asked", "effort"),
    [
        (HARMONY, {"enable_thinking": False}, "low"),
        (HARMONY, {"enable_thinking": True}, "medium"),
        (HARMONY, {"reasoning_effort": "xhigh"}, "high"),
        (HARMONY, {"reasoning_effort": ["odd"]}, ["odd"]),
        (MISTRAL_NEW, {"enable_thinking": False}, "none"),
        (MISTRAL_NEW, {"reasoning_effort": "low"}, "high"),
        (GLM, {"enable_thinking": False}, None),
        (GLM, {"enable_thinking": True, "reasoning_effort": "low"}, "high"),
    ],
)
def test_a_template_gets_the_next_effort_that_it_knows(source: str, asked: Json, effort: Any) -> None:
    switches = "reasoning_effort" + " enable_thinking" * (source is GLM)
    assert family_of(source).settings(switches, asked).get("reasoning_effort") == effort
    both = {"thinking": asked["enable_thinking"]} if "enable_thinking" in asked else {}
    assert family_of(source).settings("", asked) == asked | both


def test_content_comes_at_once() -> None:
    reader = MessageReader(form_of(SAMPLES["hermes"]))
    assert reader.feed([TextSpan("Hi", None)]) == [ContentAdded((TextSpan("Hi", None),))]
