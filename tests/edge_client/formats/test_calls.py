"""A message that must call tools is a call in the model's own notation, with arguments as its schema says."""

import itertools
import json
import random
import re
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.grammar import Grammars, Matcher, json_schema_grammar, lark_grammar, regex_grammar
from edge_client.formats.api_error import ApiError
from edge_client.formats.call_grammar import CallGrammars, Thought, request_grammar, thought_of
from edge_client.formats.call_style import CallStyle, call_style
from edge_client.formats.chat_template import ChatTemplate
from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.families import family_of
from edge_client.formats.message import Message, MessageForm
from edge_client.formats.message_reader import MessageReader
from edge_client.formats.parsed_request import CallRule, Tool, Tools
from tests.edge_client.formats.call_templates import FAMILIES, Family, family, needs_templates

pytestmark = [pytest.mark.grammar, pytest.mark.api, needs_templates]

Json = dict[str, Any]

HELD = re.compile(r'"[^"]*</(parameter|arg_value|function|tool_call)>')
"""An end's mark that may be within a string in JSON, where it cannot be told from an end."""

ENDS = frozenset(b'"}],\n')
OWN = [name for name in FAMILIES if name != "gemma3"]
USER: Json = {"role": "user", "content": "hello"}

DEFINITIONS = {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
SCALARS = [
    {"type": "string"},
    {"type": "string", "enum": ["celsius", "kelvin", "a b"]},
    {"type": "string", "pattern": "^[a-z]{2,4}$"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "integer", "minimum": 1, "maximum": 40},
    {"type": "boolean"},
    {"enum": [3, 7]},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"$ref": "#/$defs/place"},
]
SCHEMAS = st.sampled_from(SCALARS) | st.sampled_from(SCALARS[:6]).flatmap(
    lambda inner: st.sampled_from(
        [
            {"type": "array", "items": inner, "maxItems": 2},
            {"type": "object", "properties": {"in": inner, "of": inner}, "additionalProperties": False},
        ]
    )
)


@st.composite
def tools_of(draw: st.DrawFn) -> list[Tool]:
    """One to three tools, with names that begin alike."""
    found = list[Tool]()
    for name in ("get", "get_it", "set-it")[: draw(st.integers(1, 3))]:
        properties = draw(st.dictionaries(st.sampled_from("abcd"), SCHEMAS, max_size=3))
        needed = [each for each in properties if draw(st.booleans())]
        schema = {"type": "object", "properties": properties, "required": needed, "$defs": DEFINITIONS}
        found.append(Tool(name, "a tool", schema, strict=True))
    return found


def value_of(schema: Json, rng: random.Random) -> Any:
    """Return a value that matches a schema of `SCHEMAS`."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return rng.choice(["2026-11-24", None])
    if "$ref" in schema:
        return {"x": rng.randint(-9, 9)}
    match schema["type"]:
        case "string" if "pattern" in schema:
            return "".join(rng.choices("abcz", k=3))
        case "string":
            return "".join(rng.choices('ab"é<\\{}', k=rng.randint(2, 5)))
        case "integer":
            return rng.randint(1, 40)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [value_of(schema["items"], rng) for _ in range(rng.randint(0, 2))]
        case _:
            return {
                name: value_of(each, rng) for name, each in schema["properties"].items() if rng.random() < 0.7
            }


def matches(schema: Json, value: Any) -> bool:
    """Tell whether a value matches a schema of `SCHEMAS`."""
    if "enum" in schema:
        return value in schema["enum"] and not isinstance(value, bool)
    if "anyOf" in schema:
        return value is None or (isinstance(value, str) and bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value)))
    if "$ref" in schema:
        return isinstance(value, dict) and type(value.get("x")) is int
    match schema["type"]:
        case "string":
            return (
                isinstance(value, str)
                and bool(re.search(schema.get("pattern", ""), value))
                and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
            )
        case "integer":
            return type(value) is int and 1 <= value <= 40
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return (
                isinstance(value, list)
                and len(value) <= 2
                and all(matches(schema["items"], e) for e in value)
            )
        case _:
            known = schema["properties"]
            return (
                isinstance(value, dict)
                and set(schema.get("required", ())) <= set(value)
                and all(name in known and matches(known[name], each) for name, each in value.items())
            )


@cache
def known(name: str) -> tuple[Family, CallStyle]:
    found = family(name)
    return found, call_style(found.template, found.controls)


@cache
def grammars(name: str) -> Grammars:
    return Grammars(known(name)[0].tokens)


def required(
    name: str, tools: Sequence[Tool], parallel: bool = True, thought: Thought | None = None
) -> Matcher:
    found, style = known(name)
    return grammars(name).matcher(
        CallGrammars(style.syntax, found.controls, parallel, thought).required(tools)
    )


def walk(found: Family, matcher: Matcher, rng: random.Random, most: int = 400) -> str | None:
    """Write a text by chance, under the grammar; None if it became too long."""
    path = list[int]()
    while len(path) < most:
        mask = matcher.allowed(np.array(path, np.int32))
        assert mask is not None
        allowed = np.flatnonzero(mask).tolist()
        if found.eos in allowed and (len(allowed) == 1 or rng.random() < 0.5):
            return b"".join(found.pieces[each] for each in path).decode()
        letters = [each for each in allowed if 32 <= each < 127]
        ends = [each for each in allowed if found.eos > each >= 256 or each in ENDS]
        path.append(
            rng.choice(ends if ends and (not letters or rng.random() < 0.4) else letters or allowed[:1])
        )
    return None


def accepts(found: Family, matcher: Matcher, text: str) -> bool:
    path = np.array([*found.read(text), found.eos], np.int32)
    return matcher.allowed(path) is not None


def calls_in(name: str, text: str, tools: Sequence[Tool], rng: random.Random) -> list[tuple[str, Json]]:
    """Return the calls in a text, as a client gets them. The text must hold nothing else."""
    found, style = known(name)
    form = family_of(found.template.source).form(found.template.source, style.is_own)
    reader = MessageReader(replace(form, tools=[each.to_json() for each in tools]))
    message = Message()
    cuts = [0, *sorted(rng.randint(0, len(text)) for _ in range(3)), len(text)]
    for begin, end in itertools.pairwise(cuts):
        message.add(reader.feed([TextSpan(text[begin:end], None)]))
    message.add(reader.finish())
    assert not (message.text + message.thought).strip(), text
    return [(call.name, json.loads(call.arguments)) for call in message.calls]


# Tests ------------------------------------------------------------------------------------------------------


JSONS = {"True": "true", "False": "false", "None": "null"}
PYTHONS = re.compile(r"(?<=>\n)(True|False|None)(?=\n</parameter>)")
"""Values as Qwen 3.5's own template writes them. The grammar asks for JSON, and the reader takes both."""


@settings(max_examples=50)  # each reads a grammar and walks under it
@given(st.sampled_from(sorted(FAMILIES)), tools_of(), st.booleans(), st.randoms(use_true_random=False))
def test_what_the_grammar_accepts_is_calls_that_match_their_schemas(
    name: str, tools: list[Tool], parallel: bool, rng: random.Random
) -> None:
    text = walk(known(name)[0], required(name, tools, parallel), rng)
    if text is None or (known(name)[1].syntax.named is not None and HELD.search(text)):
        return
    found = calls_in(name, text, tools, rng)
    assert found
    assert parallel or len(found) == 1
    for called, arguments in found:
        (tool,) = [each for each in tools if each.name == called]
        assert matches(tool.parameters, arguments), (called, arguments)


@settings(max_examples=50)
@given(
    st.sampled_from([name for name in OWN if name != "gpt-oss"]),
    tools_of(),
    st.randoms(use_true_random=False),
)
def test_the_grammar_accepts_what_the_template_writes(
    name: str, tools: list[Tool], rng: random.Random
) -> None:
    found, style = known(name)
    chosen = rng.choices(tools, k=1 if style.syntax.between is None else rng.randint(1, 3))
    calls = [
        {
            "id": f"call0000{at}",
            "type": "function",
            "function": {"name": each.name, "arguments": arguments_of(each, rng)},
        }
        for at, each in enumerate(chosen)
    ]
    listed = [each.to_json() for each in tools]
    messages = style.shown([USER, {"role": "assistant", "content": "", "tool_calls": calls}], listed)
    text = found.template.render(messages, {"tools": listed, "add_generation_prompt": False})
    text = re.sub(r', "id": "call0000."|\[CALL_ID\]call0000.', "", text)
    text = PYTHONS.sub(lambda found: JSONS[found[0]], text)
    section = text[text.index(style.syntax.begin, text.rindex("hello")) :].removesuffix("</s>")
    assert accepts(
        found, required(name, tools), section[: section.rindex(style.syntax.end) + len(style.syntax.end)]
    )


def arguments_of(tool: Tool, rng: random.Random) -> Json:
    """Return arguments that match a tool's schema, in its order."""
    needed = tool.parameters["required"]
    properties = tool.parameters["properties"].items()
    return {key: value_of(each, rng) for key, each in properties if key in needed or rng.random() < 0.5}


def test_a_call_may_follow_a_thought_and_must_if_the_prompt_holds_its_beginning() -> None:
    found, tools = known("qwen3")[0], [Tool("get", "", {"type": "object", "properties": {}})]
    call = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
    may, must = (
        required("qwen3", tools, True, Thought("<think>", "</think>", is_open)) for is_open in (False, True)
    )
    assert accepts(found, may, call)
    assert accepts(found, may, f"<think>well, <tool_call></think>\n\n{call}")
    assert not accepts(found, may, f"<think>well</think>{call} and more")
    assert accepts(found, must, f"well</think>\n\n{call}")
    assert not accepts(found, must, call)


@pytest.mark.parametrize(
    ("prefix", "source", "expected"),
    [
        ("", "{{ '<think>' }}", Thought("<think>", "</think>", False)),
        ("", "{{ 'no thought' }}", None),
        ("<think>\n", "", Thought("<think>", "</think>", True)),
        ("<think>\n\n</think>\n\n", "{{ '<think>' }}", None),
    ],
)
def test_a_thought_comes_where_the_template_or_the_prompt_says_so(
    prefix: str, source: str, expected: Thought | None
) -> None:
    form = replace(family_of("<tool_call>").form("<think>"), prefix=prefix)
    assert thought_of(form, source) == expected
    assert thought_of(MessageForm(prefix=prefix), source) is None


# Which grammar a request gets -------------------------------------------------------------------------------

LOOSE = Tool("loose", "", {"type": "object", "properties": {"n": {"type": "integer"}}})
STRICT = Tool("strict", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, strict=True)
NOT_ENFORCEABLE = Tool(
    "odd", "", {"type": "object", "properties": {"n": {"type": "string", "format": "odd"}}}
)
FORMAT = {"type": "object", "properties": {"answer": {"type": "integer"}}, "additionalProperties": False}


def asked(name: str, tools: Tools, own: str = "") -> str:
    found, style = known(name)
    return request_grammar(tools, own, CallGrammars(style.syntax, found.controls, tools.parallel))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_auto_has_a_grammar_with_a_strict_tool_which_holds_its_calls(name: str) -> None:
    assert asked(name, Tools((LOOSE, NOT_ENFORCEABLE))) == ""
    assert asked(name, Tools((LOOSE, STRICT), CallRule.NONE)) == ""
    found, style = known(name)
    matcher = grammars(name).matcher(asked(name, Tools((LOOSE, STRICT))))
    syntax = style.syntax
    assert accepts(found, matcher, "just { text")
    assert accepts(found, matcher, "")
    for tool, fits in ((LOOSE, True), (STRICT, False)):
        wrong = _written(syntax, tool.name, "n", '"x"')
        assert accepts(found, matcher, wrong) == fits, wrong
        assert accepts(found, matcher, _written(syntax, tool.name, "n", "7"))
    empty = f"{syntax.begin}strict{syntax.named.none}{syntax.end}" if syntax.named else None
    assert empty is None or accepts(found, matcher, empty)
    if syntax.begin[0] != "{":  # JSON without marks is a call at the beginning only
        call = _written(syntax, "strict", "n", "7")
        assert accepts(found, matcher, f"{call}\n{call}\n")
        single = grammars(name).matcher(asked(name, Tools((LOOSE, STRICT), parallel=False)))
        assert accepts(found, single, f"a{call}b")
        assert not accepts(found, single, f"a{call}b{call}")
        assert accepts(found, matcher, "some text" + _written(syntax, "strict", "n", "7") + "and more")
        assert not accepts(found, matcher, "some text" + _written(syntax, "strict", "n", '"x"'))


def _written(syntax: Any, name: str, key: str, value: str) -> str:
    """Return a call with one argument."""
    if syntax.named is None:
        return f'{syntax.begin}{name}{syntax.middle}{{"{key}": {value}}}{syntax.end}'
    named = syntax.named
    if value.startswith('"'):
        argument = f"{named.text[0]}{value[1:-1]}{named.text[1]}"
    else:
        argument = f"{named.other[0]}{value}{named.other[1]}"
    return f"{syntax.begin}{name}{named.first}{key}{argument}{named.last}{syntax.end}"


@pytest.mark.parametrize("own", ["", json_schema_grammar(FORMAT)], ids=["", "format"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_named_function_is_the_only_one_that_can_be_called(name: str, own: str) -> None:
    found, style = known(name)
    tools = Tools((LOOSE, STRICT), CallRule.REQUIRED, only="loose")
    matcher = grammars(name).matcher(asked(name, tools, own))
    assert accepts(found, matcher, _written(style.syntax, "loose", "n", "7"))
    assert not accepts(found, matcher, _written(style.syntax, "strict", "n", "7"))
    assert not accepts(found, matcher, "text")


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_with_a_format_a_message_is_calls_or_content_in_the_format(name: str) -> None:
    found, style = known(name)
    matcher = grammars(name).matcher(asked(name, Tools((LOOSE,)), json_schema_grammar(FORMAT)))
    assert accepts(found, matcher, style.syntax.content_begin + '{"answer": 7}')
    assert accepts(found, matcher, _written(style.syntax, "loose", "n", "7"))
    assert not accepts(found, matcher, "text")


@pytest.mark.parametrize(
    ("name", "thought", "texts"),
    [
        ("qwen3", Thought("<think>", "</think>", is_open=True), ["hm</think>\n\n@"]),
        ("qwen3", Thought("<think>", "</think>", is_open=False), ["<think>hm</think>\n\n@", "@"]),
        (
            "gpt-oss",
            Thought("<|channel|>analysis<|message|>", "<|end|>", is_open=False),
            [
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>@",
                "<|channel|>final<|message|>@",
            ],
        ),
    ],
)
@pytest.mark.parametrize("tools", [Tools(), Tools((LOOSE,))], ids=["no tools", "tools"])
def test_a_format_holds_the_content_and_no_thought(
    name: str, thought: Thought, texts: list[str], tools: Tools
) -> None:
    found, style = known(name)
    make = CallGrammars(style.syntax, found.controls, thought=thought)
    matcher = grammars(name).matcher(request_grammar(tools, json_schema_grammar(FORMAT), make))
    source = found.template.source
    form = replace(family_of(source).form(source), prefix=thought.begin * thought.is_open)
    for text in texts:
        written = text.replace("@", '{"answer": 7}')
        assert accepts(found, matcher, written)
        assert not accepts(found, matcher, text.replace("@", "well"))
        message, reader = Message(), MessageReader(form)
        message.add(reader.feed([TextSpan(written, None)]))
        message.add(reader.finish())
        assert message.text == '{"answer": 7}'


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_free_text_has_one_call_if_only_one_is_allowed(name: str) -> None:
    found, style = known(name)
    tools = [replace(LOOSE, name=f"loose_{at}") for at in range(128)]
    grammar = asked(name, Tools(tuple(tools), parallel=False))
    assert bool(grammar) == (style.syntax.between is not None)  # others have one call in any case
    if grammar:
        matcher = grammars(name).matcher(grammar)
        call, other = (_written(style.syntax, f"loose_{at}", "n", '"x"') for at in (7, 77))
        assert accepts(found, matcher, "just text")
        assert accepts(found, matcher, f"some text{call}")
        assert not accepts(found, matcher, f"{call}\n{other}")
        syntax = style.syntax
        several = f"{call.removesuffix(syntax.end)}{syntax.between}{other.removeprefix(syntax.begin)}"
        assert not accepts(found, matcher, several)


@pytest.mark.parametrize("name", ["gemma4", "glm4.5", "qwen3", "qwen3.5"])
def test_as_many_tools_as_openai_allows_can_be_required(name: str) -> None:
    found, style = known(name)
    edits = {"type": "array", "items": {"type": "object", "properties": {"old": {"type": "string"}}}}
    kinds: list[Json] = [{"type": "integer", "minimum": 0}, {"type": "string"}, edits, {"type": "boolean"}]
    tools = list[Tool]()
    for at in range(128):
        properties = {f"{letter}{at}": kind for letter, kind in zip("abcd", kinds, strict=True)}
        schema = {"type": "object", "properties": properties, "required": [f"a{at}"]}
        tools.append(Tool(f"server_tool_{at}", "", schema))
    matcher = required(name, tools)
    assert accepts(found, matcher, _written(style.syntax, "server_tool_127", "a127", "7"))
    assert not accepts(found, matcher, _written(style.syntax, "server_tool_127", "a126", "7"))


@pytest.mark.parametrize(
    ("tools", "own", "param"),
    [
        (Tools((LOOSE,), CallRule.REQUIRED), "grammar", "forerun"),
        (Tools((LOOSE,), CallRule.REQUIRED), "regex", "forerun"),
        (Tools((LOOSE, NOT_ENFORCEABLE), CallRule.REQUIRED), "", "tools"),
        (Tools((LOOSE, Tool("s", "", {"type": 5}, True))), "", "tools"),
    ],
)
@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gemma4"])
def test_what_cannot_be_held_is_refused_with_its_field(name: str, tools: Tools, own: str, param: str) -> None:
    given = {"grammar": lark_grammar('start: "a"'), "regex": regex_grammar("a"), "": ""}[own]
    with pytest.raises(ApiError) as caught:
        asked(name, tools, given)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "start:" not in str(caught.value)  # our own rules say nothing to a client


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gemma4"])
def test_a_number_above_our_bounds_is_held_by_its_own(name: str) -> None:
    found, style = known(name)
    large = {"type": "object", "properties": {"n": {"type": "integer", "exclusiveMinimum": 1e15}}}
    tool = Tool("large", "", {**large, "required": ["n"]})
    matcher = grammars(name).matcher(asked(name, Tools((tool,), CallRule.REQUIRED)))
    assert accepts(found, matcher, _written(style.syntax, "large", "n", f"{10**15 + 1}"))
    assert not accepts(found, matcher, _written(style.syntax, "large", "n", "7"))


@pytest.mark.parametrize("name", ["qwen3", "gemma4"])
def test_numbers_end_in_arguments_that_a_tool_leaves_open(name: str) -> None:
    found, style = known(name)
    for tool in (LOOSE, Tool("loose", "", {"type": "object", "properties": {"n": {}}}, strict=True)):
        matcher = grammars(name).matcher(asked(name, Tools((tool, STRICT))))
        assert accepts(found, matcher, _written(style.syntax, "loose", "n", "7"))
        assert not accepts(found, matcher, _written(style.syntax, "loose", "n", "7" * 400))


@pytest.mark.parametrize("name", ["qwen3", "gemma4"])
def test_a_regex_beside_tools_holds_the_whole_text(name: str) -> None:
    own = regex_grammar("ab?c")
    assert asked(name, Tools((LOOSE,)), own) == asked(name, Tools((STRICT,)), own) == own


KEYWORDS = ["type", "properties", "required", "anyOf", "allOf", "$ref", "$defs", "enum", "items", "minItems"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["string", "object", "#", "#/$defs/type"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(["qwen3", "qwen3.5", "gemma4"]), st.dictionaries(st.sampled_from(KEYWORDS[:8]), JSON))
def test_any_schema_is_held_or_refused(name: str, schema: Json) -> None:
    refused = None
    try:
        assert asked(name, Tools((Tool("odd", "", schema),), CallRule.REQUIRED))
    except ApiError as error:
        refused = error.status, error.param
    assert refused in (None, (400, "tools"))


# How a model without tools is shown them --------------------------------------------------------------------


def test_a_model_without_a_notation_is_shown_tools_and_earlier_calls_as_text() -> None:
    found, style = known("gemma3")
    call = {"id": "call", "function": {"name": "loose", "arguments": {"n": 7}}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seven"},
    ]
    shown = style.shown(messages, [LOOSE.to_json()])
    assert not style.is_own
    text = found.template.render(shown, {})
    assert json.dumps(LOOSE.to_json()["function"]) in text
    assert '<tool_call>\n{"name": "loose", "arguments": {"n": 7}}\n</tool_call>' in text
    assert "<tool_response>\nseven\n</tool_response>" in text
    assert [each["role"] for each in shown] == ["system", "user", "assistant", "user"]
    (alone,) = replace(style, has_system=False).shown([USER], [LOOSE.to_json()])
    assert alone["role"] == "user"
    assert alone["content"].endswith("hello")


def test_tools_that_a_template_ignores_stand_in_the_system_message() -> None:
    style = known("deepseek-v3")[1]
    shown = style.shown([{"role": "system", "content": "be brief"}, USER], [LOOSE.to_json()])
    assert shown[0]["content"].startswith("be brief")
    assert json.dumps(LOOSE.to_json()["function"]) in shown[0]["content"]
    assert shown[1:] == [USER]
    assert style.shown([USER], []) == [USER]


def test_a_notation_that_is_not_read_is_not_used() -> None:
    odd = (
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content }}"
        "{%- for call in message.tool_calls %}{%- set call = call.function %}{{- '<odd>' + call.name + '=' }}"
        "{{- call.arguments | tojson + '</odd>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    template = ChatTemplate(odd, {})
    assert not call_style(template, known("qwen3")[0].controls).is_own


def test_probes_of_a_template_that_writes_too_much_are_not_examined() -> None:
    """A rendered text may have 8 MB, and while it is searched no other thread runs."""
    known_one, style = known("qwen3")
    assert style.is_own
    filled = ChatTemplate(known_one.template.source + "{{ '</' * 40000 }}", {})
    begun = time.thread_time()
    assert not call_style(filled, known_one.controls).is_own
    assert time.thread_time() - begun < 3


def test_a_template_that_does_not_end_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of some twenty probes would take all its time, and threads that other texts need."""
    monkeypatch.setattr("edge_client.formats.chat_template.PROCESSOR_TIME", 0.4)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(endless, {})
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert not call_style(template, known("qwen3")[0].controls).is_own
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begun.ru_utime < 3
