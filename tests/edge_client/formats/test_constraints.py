"""A constraint under any server's name is kept or refused, in every dialect, and never dropped silently."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from common.grammar import Grammars, Tokens
from edge_client.formats.api_error import ApiError
from edge_client.formats.dialects import BY_NAME
from edge_client.formats.fields import Fields
from edge_client.formats.parsed_request import ParsedRequest

pytestmark = pytest.mark.grammar

USER = [{"role": "user", "content": "abc"}]
GOOD: dict[str, dict[str, Any]] = {
    "chat": {"messages": USER},
    "text": {"prompt": "abc"},
    "responses": {"input": "abc"},
    "messages": {"messages": USER},
    "infill": {"input_prefix": "abc"},
    "ollama_chat": {"messages": USER},
    "ollama_generate": {"prompt": "abc"},
}
"""A request of each dialect."""

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
BYTES = [bytes([each]) for each in range(256)]
END = 256


def read(dialect: str, **fields: Any) -> ParsedRequest:
    return BY_NAME[dialect].parse(Fields({**GOOD[dialect], **fields}))


def refusal(dialect: str, **fields: Any) -> tuple[int, str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        read(dialect, **fields)
    return caught.value.status, caught.value.code, caught.value.param


@cache
def grammars() -> Grammars:
    return Grammars(Tokens([*BYTES, b"<end>"], (END,), (END,), END + 1))


def matches(grammar: str, text: str) -> bool:
    """Whether a text is a whole one of this grammar."""
    mask = grammars().matcher(grammar).allowed(np.array(list(text.encode()), np.int32))
    return mask is not None and bool(mask[END])


REFUSED: list[tuple[str, Any, Any]] = [
    ("grammar", 'root ::= "yes"', ""),
    ("guided_grammar", 'root ::= "yes"', None),
    ("ebnf", 'root ::= "yes"', ""),
    ("structural_tag", '{"triggers": []}', {}),
    ("structured_outputs", {"grammar": "x"}, {"grammar": None}),
    ("whitespace_pattern", " ", ""),
    ("min_tokens", 5, 0),
    ("min_new_tokens", 5, 0),
    ("bad_words", ["a"], []),
    ("allowed_token_ids", [1], []),
    ("stop_regex", "a+", []),
    ("mirostat", 2, 0),
    ("typical_p", 0.5, 1.0),
    ("tfs_z", 0.5, 1),
    ("dry_multiplier", 0.8, 0.0),
    ("xtc_probability", 0.5, 0),
    ("dynatemp_range", 0.5, 0.0),
    ("top_n_sigma", 1.0, -1.0),
    ("logits_processors", ["x"], []),
    ("custom_logit_processor", "x", ""),
    ("lora", [{"id": 0, "scale": 1}], []),
    ("use_beam_search", True, False),
    ("echo", True, False),
    ("truncate_prompt_tokens", 5, -1),
    ("include_stop_str_in_output", True, False),
    ("skip_special_tokens", False, True),
    ("thread", {"type": "new"}, None),
    ("policy", "chain", "adaptive"),
    ("speculate", False, True),
    ("recall", False, None),
    ("reference", "abc", ""),
    ("acceptance", "exact", "coupled"),
]
"""A field, a value that asks for something, and one that asks for nothing."""


@pytest.mark.parametrize("dialect", GOOD)
@pytest.mark.parametrize(("name", "value", "neutral"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_cannot_be_done_is_refused_and_what_asks_for_nothing_is_not(
    dialect: str, name: str, value: Any, neutral: Any
) -> None:
    status, code, param = refusal(dialect, **{name: value})
    assert (status, code, str(param).split(".")[0]) == (400, "unsupported_parameter", name)
    assert not read(dialect, **{name: neutral}).sampling.grammar


KEPT: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": SCHEMA}, '{"a": "x"}', '{"a": "y"}'),
    ({"json_schema": json.dumps(SCHEMA)}, '{"a": "x"}', '{"b": 1}'),
    ({"structured_outputs": {"json": SCHEMA}}, '{"a": "x"}', "{}"),
    ({"structured_outputs": {"json_object": True}}, "{}", "[]"),
    ({"guided_regex": "ab?c"}, "ac", "ab"),
    ({"regex": "ab?c"}, "abc", "abcd"),
    ({"structured_outputs": {"regex": "ab?c"}}, "ac", "b"),
    ({"guided_choice": ['a "b"', "é\n"]}, "é\n", "a"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "yesno"),
]


@pytest.mark.parametrize("dialect", GOOD)
@pytest.mark.parametrize(("fields", "fits", "differs"), KEPT, ids=[json.dumps(each[0]) for each in KEPT])
def test_a_form_under_another_name_is_kept(
    dialect: str, fields: dict[str, Any], fits: str, differs: str
) -> None:
    grammar = read(dialect, **fields).sampling.grammar
    assert (matches(grammar, fits), matches(grammar, differs)) == (True, False)
    assert refusal(dialect, **fields, forerun={"regex": "a"})[0] == 400


@pytest.mark.parametrize(
    "fields",
    [{"guided_json": "{"}, {"json_schema": [1]}, {"guided_choice": [""]}, {"guided_regex": "(", "n": 1}],
    ids=str,
)
def test_a_form_that_cannot_be_read_is_named(fields: dict[str, Any]) -> None:
    assert refusal("chat", **fields)[2] == next(iter(fields))


def held(schema: dict[str, Any], value: str) -> bool:
    """Whether a member with this schema may have this value."""
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}
    return matches(read("chat", guided_json=whole).sampling.grammar, f'{{"v": {value}}}')


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "number", "allOf": [{"minimum": 2e15}]}, "3000000000000000"),
        ({"allOf": [{"type": "number"}, {"minimum": 1e16}]}, "20000000000000000"),
        ({"type": "integer", "exclusiveMinimum": 1e15}, "1000000000000001"),
        ({"type": "string", "format": "duration", "minLength": 70}, f'"P{"1" * 70}D"'),
    ],
    ids=["all", "in-all", "exclusive", "long"],
)
def test_a_schema_to_which_our_bounds_leave_no_value_is_held_without_them(
    schema: dict[str, Any], value: str
) -> None:
    assert held(schema, value)


NUMBERS = [
    ({"type": "number"}, ["0", "-3.5", "0.50", "1234567.25"]),
    ({"type": ["number", "null"]}, ["null", "7"]),
    ({"type": "number", "minimum": 0}, ["0.5"]),
    ({"type": "number", "exclusiveMaximum": 1}, ["0.5", "-7"]),
    ({"type": "number", "multipleOf": 0.5}, ["0.5"]),
    ({"type": "integer"}, ["0", "-123456789012345"]),
    ({"type": "integer", "minimum": 3}, ["3"]),
    ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, ["7", "true"]),
]


@pytest.mark.parametrize(("schema", "values"), NUMBERS, ids=[json.dumps(each[0]) for each in NUMBERS])
def test_numbers_end(schema: dict[str, Any], values: list[str]) -> None:
    assert all(held(schema, value) for value in values)
    for endless in ("1" * 400, "0." + "3" * 400, "0.5" + "0" * 400, "1." + "0" * 400, "1e" + "1" * 400):
        assert not held(schema, endless), endless[:9]


LEFT_OPEN = [
    ({}, "[{}]"),
    ({"description": "any"}, "{}"),
    ({"type": "array"}, "[0, [{}]]"),
    ({"type": "object"}, '{{"a": {{"b": {}}}}}'),
    ({"type": "object", "properties": {"a": True}}, '{{"a": {}}}'),
    ({"type": "object", "properties": {"a": {}}}, '{{"b": {}}}'),
    ({"properties": {"a": {"type": "array", "prefixItems": [{"type": "null"}]}}}, '{{"a": [null, {}]}}'),
    ({"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]}, '{{"a": {}}}'),
]


@pytest.mark.parametrize(("schema", "place"), LEFT_OPEN, ids=[json.dumps(each[0]) for each in LEFT_OPEN])
def test_numbers_end_where_a_schema_leaves_a_value_open(schema: dict[str, Any], place: str) -> None:
    for value in ("-7.25", "true", '"text"', '{"c": [null, {}]}'):
        assert held(schema, place.format(value)), value
    for endless in ("1" * 400, "0." + "3" * 400, "1e" + "1" * 400):
        assert not held(schema, place.format(endless)), endless[:9]


def test_numbers_of_any_object_end() -> None:
    grammar = read("chat", response_format={"type": "json_object"}).sampling.grammar
    assert matches(grammar, '{"a": [7]}')
    assert not matches(grammar, f'{{"a": [{"7" * 400}]}}')


def test_formats_with_digits_end() -> None:
    for name, before, after in (("date-time", "2020-01-01T00:00:00.", "Z"), ("time", "00:00:00.", "Z")):
        schema = {"type": "string", "format": name}
        assert held(schema, f'"{before}123{after}"')
        assert not held(schema, f'"{before}{"1" * 400}{after}"')


def test_a_schemas_own_numbers_are_kept() -> None:
    large = 10**17
    assert held({"type": "integer", "minimum": large}, str(large))
    assert held({"enum": [1e20, "a"]}, '"a"')
    assert held({"type": "array", "items": {"type": "number", "const": 0.0000000000001}}, "[]")


def test_a_schema_beside_json_object_counts() -> None:
    form = {"type": "json_object", "schema": SCHEMA}
    for grammar in (
        read("chat", response_format=form).sampling.grammar,
        read("responses", text={"format": form}).sampling.grammar,
    ):
        assert (matches(grammar, '{"a": "x"}'), matches(grammar, "{}")) == (True, False)
    plain = read("chat", response_format={"type": "json_object", "schema": {}}).sampling.grammar
    assert matches(plain, "{}")


@pytest.mark.parametrize("dialect", [each for each in GOOD if not each.startswith("ollama")])
def test_the_conventions_of_local_servers_hold_everywhere(dialect: str) -> None:
    """-1 draws a seed and sets no limit, and empty stop strings are none (llama.cpp, LM Studio, vLLM)."""
    seeds = {read(dialect, seed=-1).sampling.seed for _ in range(8)}
    assert len(seeds) == 8
    assert read(dialect, seed=-2).sampling.seed == read(dialect, seed=-2).sampling.seed
    assert not read(dialect, max_tokens=-1).max_tokens
    assert read(dialect, n_predict=7).max_tokens == 7
    assert not read(dialect, n_predict=-1).max_tokens
    stops = "stop_sequences" if dialect == "messages" else "stop"
    assert read(dialect, **{stops: ["", "a"]}).stops == ("a",)


def test_ollamas_options_have_the_same_conventions() -> None:
    assert len({read("ollama_chat", options={"seed": -1}).sampling.seed for _ in range(8)}) == 8
    assert read("ollama_chat", options={"stop": ""}).stops == ()
    assert refusal("ollama_chat", options={"xtc_probability": 0.5})[1] == "unsupported_parameter"


def test_a_response_may_have_no_limit() -> None:
    assert read("responses", max_output_tokens=-1).max_tokens is None


@pytest.mark.parametrize("dialect", ["infill", "ollama_chat", "ollama_generate"])
def test_a_format_by_openais_name_is_refused_where_another_name_is_the_own(dialect: str) -> None:
    form = {"type": "json_object"}
    assert refusal(dialect, response_format=form)[1:] == ("unsupported_parameter", "response_format")
    assert read(dialect, response_format={"type": "text"}).sampling.grammar == ""
    assert refusal("chat", format="json")[2] == "format"


def test_samplers_are_refused_but_editors_send_some_to_fill_gaps() -> None:
    assert refusal("chat", samplers=["xtc"])[1:] == ("unsupported_parameter", "samplers")
    fields = {"samplers": ["top_k", "infill"], "n_predict": 0, "t_max_predict_ms": 500}
    assert read("infill", **fields).max_tokens == 1


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "ollama_chat"])
@pytest.mark.parametrize("fields", [{"continue_final_message": True}, {"add_generation_prompt": False}])
def test_a_begun_answer_is_not_ended_and_begun_anew(dialect: str, fields: dict[str, Any]) -> None:
    assert refusal(dialect, **fields) == (400, "unsupported_parameter", next(iter(fields)))


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_can_be_called(mode: str) -> None:
    tools = [{"type": "function", "function": {"name": each}} for each in "fg"]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    prompt: Any = read("chat", tools=tools, tool_choice=choice).prompt
    assert [each.name for each in prompt.tools.callable] == ["g"]
    assert prompt.tools.rule.value == mode


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
RESULTS: dict[str, tuple[str, Any]] = {
    "chat": ("messages", lambda parts: [*USER, {"role": "tool", "tool_call_id": "1", "content": parts}]),
    "responses": (
        "input",
        lambda parts: [*USER, {"type": "function_call_output", "call_id": "1", "output": parts}],
    ),
    "messages": (
        "messages",
        lambda parts: [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": parts}]}
        ],
    ),
}


@pytest.mark.parametrize("part", [IMAGE, {"type": "document"}, {"text": "no type"}], ids=str)
@pytest.mark.parametrize("dialect", RESULTS)
def test_a_note_stands_for_what_the_model_cannot_read_of_a_tools_result(
    dialect: str, part: dict[str, Any]
) -> None:
    field, form = RESULTS[dialect]
    prompt: Any = read(dialect, **{field: form([{"type": "text", "text": "seen: "}, part])}).prompt
    content = prompt.messages[-1]["content"]
    assert content.startswith("seen: ")
    assert "left out" in content


def test_images_of_ollamas_tools_are_left_out() -> None:
    messages = [*USER, {"role": "tool", "content": "seen", "images": ["aGk="]}]
    prompt: Any = read("ollama_chat", messages=messages).prompt
    assert "left out" in prompt.messages[-1]["content"]


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_users_own_image_and_a_part_without_a_type_are_refused(dialect: str) -> None:
    name = "input" if dialect == "responses" else "messages"
    for part, code, end in ((IMAGE, "unsupported_parameter", ""), ({"text": "hi"}, None, ".type")):
        status, told, param = refusal(dialect, **{name: [{"role": "user", "content": [part]}]})
        assert (status, told) == (400, code)
        assert str(param).endswith(end)


def test_a_thread_is_refused_so_that_anthropics_clients_send_whole_histories() -> None:
    with pytest.raises(ApiError) as caught:
        read("messages", thread={"type": "continue", "previous_message_id": "msg_x"})
    told = BY_NAME["messages"].error(caught.value)["error"]
    assert told["details"]["error_code"] == "thread_unsupported_request"
    assert "details" not in BY_NAME["messages"].error(ApiError(400, "other"))["error"]
    assert refusal("chat", previous_response_id="resp_1")[2] == "previous_response_id"
