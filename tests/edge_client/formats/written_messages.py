"""Texts of each family of models with reasoning, content and calls, and what they say."""

from dataclasses import dataclass, field
from typing import Any

from edge_client.formats.families import Family, family_of, marks_of
from edge_client.formats.message import MessageForm
from edge_client.formats.regions import CallForm, Mark, Region

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": ["boolean", "null"]},
                "at": {"anyOf": [{"type": "array"}, {"type": "object"}]},
            },
        },
    },
}
TOOLS = (WEATHER,)

Call = tuple[str, Json]


@dataclass(frozen=True)
class Sample:
    """One text, and the message that it is. `source` stands for the chat template: its marks."""

    source: str
    text: str
    content: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    prefix: str = ""

    @property
    def family(self) -> Family:
        return family_of(self.source)

    @property
    def form(self) -> MessageForm:
        return self.family.form(self.source)


PARIS: Call = ("get_weather", {"city": "Paris"})
ROME: Call = ("get_weather", {"city": "Rome", "days": 3})
THINK = "<think></think>"
HERMES, CODER, GLM = (f"{mark}{THINK}" for mark in ("<tool_call>", "<tool_call><function=", "<arg_key>"))
LLAMA, MISTRAL, MISTRAL_NEW = "<|start_header_id|>", "[TOOL_CALLS]", "[TOOL_CALLS][ARGS]"
DSML = f"｜DSML｜{THINK}"
GEMMA_4, HARMONY, DEEPSEEK = "<|tool_call>call:", "<|channel|>", f"<｜tool▁call▁begin｜>{THINK}"

SAMPLES = {
    "hermes": Sample(
        HERMES,
        "<think>\nParis, then.\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"city": "Rome", "days": "3"}, "name": "get_weather"}\n</tool_call>',
        "I look.",
        "Paris, then.",
        [PARIS, ROME],
    ),
    "hermes, begun thought": Sample(HERMES, "So.\n</think>\n\nHi.", "Hi.", "So.", prefix="<think>\n"),
    "hermes, no thought": Sample(HERMES, "Hi.", "Hi.", prefix="<think>\n\n</think>\n\n"),
    "hermes, plain": Sample(HERMES, "a < b, <b>c</b>", "a < b, <b>c</b>"),
    "qwen 2.5 coder, fenced": Sample(
        HERMES,
        '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}\n```',
        calls=[PARIS],
    ),
    "qwen 2.5 coder, bare": Sample(
        HERMES, '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}', calls=[ROME]
    ),
    "qwen 3.5": Sample(
        CODER,
        "Hm.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        thought="Hm.",
        calls=[PARIS, ROME],
        prefix="<think>\n",
    ),
    "glm 4.5": Sample(
        GLM,
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "I look.",
        "Hm.",
        [ROME],
    ),
    "glm 4.7": Sample(
        GLM,
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        calls=[PARIS],
        prefix="</think>",
    ),
    "llama 3": Sample(
        LLAMA, '{"name": "get_weather", "parameters": {"city": "Rome", "days": "3"}}', calls=[ROME]
    ),
    "llama 3, marked": Sample(
        LLAMA,
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}'
        "<|eom_id|>",
        calls=[PARIS],
    ),
    "llama 3, plain": Sample(LLAMA, "{name} is in {place}", "{name} is in {place}"),
    "mistral": Sample(
        MISTRAL,
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}, "id": "abcdefghi"}]',
        calls=[PARIS, ROME],
    ),
    "mistral, new": Sample(
        MISTRAL_NEW,
        '[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}'
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 3}</s>',
        "I look.",
        "Hm.",
        [PARIS, ROME],
    ),
    "gemma 4": Sample(
        GEMMA_4,
        "<|channel>thought\nHm.<channel|>I look."
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
        "I look.",
        "Hm.",
        [PARIS, ROME],
    ),
    "gemma 3": Sample("<start_of_turn>", "I look.", "I look."),
    "harmony": Sample(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|>',
        "I look.",
        "Hm.",
        [PARIS],
    ),
    "harmony, answer": Sample(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>",
        "Hi.",
        "Hm.",
    ),
    "harmony, recipient first": Sample(
        HARMONY,
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Rome", "days": 3}<|call|>',
        calls=[ROME],
    ),
    "deepseek r1": Sample(
        DEEPSEEK,
        "Hm.\n</think>\n\nI look."
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Rome", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "I look.",
        "Hm.",
        [PARIS, ROME],
        prefix="<think>\n",
    ),
    "deepseek v3.1": Sample(
        DEEPSEEK,
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "I look.",
        calls=[PARIS],
        prefix="</think>",
    ),
    "deepseek v4": Sample(
        DSML,
        'Hm.</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>",
        "I look.",
        "Hm.",
        [PARIS, ROME],
        prefix="<think>",
    ),
}


def response_template(form: MessageForm) -> Json:
    """The marks as a `response_template` of transformers 5.23, which takes no white space away by itself."""
    marks = marks_of(form)
    fields = {each.name: _field(each) for each in (marks.outside, *marks.regions)}
    start = {"start_anchor_pattern": marks.start.compiled.pattern}
    return {"defaults": {"role": "assistant"}, **start, "fields": fields}


def _field(region: Region) -> Json:
    spaced = region.name != "reasoning_content"
    field: Json = {"join": region.join, "repeats": True} if region.join is not None else {}
    for name, mark in (("open", region.open), ("close", region.close)):
        if mark is not None:
            field |= _anchor(name, mark, spaced)
    return field | (_calls(region.calls) if region.calls is not None else {})


def _anchor(name: str, mark: Mark, spaced: bool) -> Json:
    if not mark.pattern:
        return {name: list(mark.texts)}
    return {f"{name}_pattern": rf"\s*(?:{mark.pattern})" if spaced else mark.pattern}


def _calls(form: CallForm) -> Json:
    name, arguments = "{name}", "{content}"
    if form.is_list:
        name, arguments = "{name}", "{arguments}"
    elif form.name_key:
        name, arguments = f"{{content.{form.name_key}}}", f"{{content.{form.arguments_key}}}"
    field: Json = {"content": "json", "transform_each": form.is_list, "repeats": not form.is_list}
    if form.tags is not None:
        begin, end = form.tags
        field["content"] = "xml-inline"
        field["content_args"] = {"tag_pattern": f"{begin}(?P<value>.*?){end}"}
    if form.quotes is not None:
        field["content_args"] = {"unquoted_keys": True, "string_delims": [list(form.quotes)]}
    return {**field, "transform": {"type": "function", "function": {"name": name, "arguments": arguments}}}
