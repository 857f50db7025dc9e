"""Knows families of models by the marks in their chat templates: how they write, and what they want to get.

A family's `template` is a `response_template` of transformers 5.23. The
marks are facts of the models' own chat templates, as they are on the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

AS_FUNCTION: Json = {"type": "function", "function": "{content}"}
WITH_NAME: Json = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

NAMED_CALLS: Json = {"repeats": True, "content": "json", "transform": WITH_NAME}
"""The fields of calls whose name stands before their arguments. A family adds its marks."""

HERMES_CALLS: Json = {
    # White space before a call is no content, also for transformers. Qwen 2.5 Coder leaves its marks out.
    "open_pattern": r'\s*<tool_call>|\A\s*(?P<unmarked>```(?:json)?\s*|)(?=\{\s*"name"\s*:)',
    "close": ["</tool_call>", "```"],
    "repeats": True,
    "content": "json",
    "transform": AS_FUNCTION,
}
THINK: Json = {"open": "<think>", "close": "</think>"}
"""The marks of reasoning of most models. They count where the chat template names them."""

BEGUN = r"(?=<think>\s*\Z)"
"""Finds the mark of reasoning that the prompt has already begun."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort`, from the least on."""


@dataclass(frozen=True, slots=True)
class Family:
    """Describes one family."""

    name: str
    marks: tuple[str, ...]  # one of them is in the chat template
    start: str  # pattern before the message
    calls: Json | None  # None: the model has no notation of its own
    reasoning: Json | None = None  # None: `THINK`
    content: Json | None = None  # None: all else
    short_ids: bool = False  # ids of calls must have nine letters or digits
    has_blocks: bool = False  # some templates want reasoning as a block of the content
    efforts: tuple[str, ...] = ()  # the values of `reasoning_effort`, from the least on; empty: any
    is_harmony: bool = False

    def template(self, source: str, calls: Json | None = None) -> Json:
        """Return the response template of a model with this chat template. `calls` replace its own."""
        fields: Json = {"content": self.content or {}}
        if (own := calls or self.calls) is not None:
            fields["tool_calls"] = own
        if self.reasoning is not None or any(mark in source for mark in THINK.values()):
            fields["reasoning_content"] = self.reasoning or THINK
        return {"defaults": {"role": "assistant"}, "start_anchor_pattern": self.start, "fields": fields}

    def settings(self, source: str, given: Json) -> Json:
        """Return the settings that this chat template of the family knows: the next effort of its own, and
        `enable_thinking` also by its other name (DeepSeek, Granite, Hermes)."""
        if "enable_thinking" in given:
            given = {"thinking": given["enable_thinking"], **given}
        if not self.efforts or "reasoning_effort" not in source:
            return given
        effort = given.get("reasoning_effort")
        if effort is None and "enable_thinking" in given and "enable_thinking" not in source:
            effort = "medium" if given["enable_thinking"] else "none"
        if effort not in EFFORTS:
            return given
        least = EFFORTS.index(effort)
        own = next((each for each in self.efforts if EFFORTS.index(each) >= least), self.efforts[-1])
        return {**given, "reasoning_effort": own}

    def messages(self, source: str, given: Sequence[Mapping[str, Any]], settings: Json) -> list[Json]:
        """Return the messages as this chat template of the family wants them with these settings."""
        return [
            self._short(self._spoken(source, dict(each), settings) if each["role"] == "assistant" else each)
            for each in given
        ]

    def _spoken(self, source: str, message: Json, settings: Json) -> Json:
        """Return a message of the model's own."""
        calls, content = message.get("tool_calls"), message["content"]
        thought = message.get("reasoning_content", "")
        if self.is_harmony and calls:  # its template takes one of both with calls, and writes both alike
            message |= {"thinking": "\n\n".join(filter(None, (thought, content))), "content": ""}
        if self.has_blocks and thought and "'thinking'" in source and "reasoning_content" not in source:
            message["content"] = [
                {"type": "thinking", "thinking": thought},
                *([{"type": "text", "text": content}] if content else []),
            ]
        if "keep_cots" in source and settings.get("thinking") and content:  # Hermes 4 cuts it at the mark
            message["content"] = f"<think>{thought}</think>{content}"
        return message

    def _short(self, message: Mapping[str, Any]) -> Json:
        """Return a message with the ids that the template takes."""
        shown = dict(message)
        if self.short_ids and "tool_calls" in shown:
            shown["tool_calls"] = [
                {**each, "id": short_id(each.get("id", ""))} for each in shown["tool_calls"]
            ]
        if self.short_ids and "tool_call_id" in shown:
            shown["tool_call_id"] = short_id(shown["tool_call_id"])
        return shown


def short_id(given: str) -> str:
    """Return an id of nine letters and digits, always the same for one id."""
    return given if re.fullmatch("[A-Za-z0-9]{9}", given) else hashlib.sha256(given.encode()).hexdigest()[:9]


CHATML = r"<\|im_start\|>assistant\n"
HARMONY_TYPE = r"\s*(?:<\|constrain\|>\s*)?\w*\s*<\|message\|>"

FAMILIES = (
    Family(
        "Gemma 4",
        marks=("<|tool_call>call:",),
        start=r"<\|turn>model\n|<tool_response\|>",
        reasoning={"open": "<|channel>thought\n", "close": "<channel|>"},
        calls={
            **NAMED_CALLS,
            "open_pattern": r"<\|tool_call>call:(?P<name>[^{\s]+)",
            "close": "<tool_call|>",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        },
        content={"close": ["<turn|>", "<|tool_response>"]},
    ),
    Family(  # https://cookbook.openai.com/articles/openai-harmony
        "gpt-oss",
        marks=("<|channel|>",),
        start=r"<\|start\|>assistant",
        reasoning={
            "open": ["<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>analysis<|message|>"],
            "close": "<|end|>",
            "repeats": True,
            "join": "\n\n",
        },
        calls={
            **NAMED_CALLS,
            "open_pattern": r"(?:<\|start\|>assistant)?(?:"
            r"\s*to=functions\.(?P<name>[^<\s]+)\s*<\|channel\|>(?:commentary|analysis)|"
            r"<\|channel\|>(?:commentary|analysis)\s+to=functions\.(?P<name>[^<\s]+))" + HARMONY_TYPE,
            "close": ["<|call|>", "<|end|>"],
        },
        content={
            "close_pattern": r"<\|(?:end|return|call)\|>|"
            r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)" + HARMONY_TYPE,
            "repeats": True,
            "join": "\n\n",
        },
        efforts=("low", "medium", "high"),
        is_harmony=True,
    ),
    Family(
        "DeepSeek V3.2, V4",
        marks=("｜DSML｜",),
        start=r"<｜Assistant｜>|</function_results>",
        calls={
            "open_pattern": r'\s*(?:<｜DSML｜\w+>\s*)?<｜DSML｜invoke name="(?P<name>[^"]+)">',
            "close": "</｜DSML｜invoke>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<｜DSML｜parameter name="(?P<key>[^"]+)"[^>]*>'
                r"(?P<value>.*?)</｜DSML｜parameter>"
            },
            "transform": WITH_NAME,
        },
        content={
            "close_pattern": r"</think>|\s*</｜DSML｜(?:tool|function)_calls>|<｜end▁of▁sentence｜>",
        },
    ),
    Family(
        "DeepSeek V3, R1",
        marks=("<｜tool▁call▁begin｜>", "<｜Assistant｜>"),
        start=r"<｜Assistant｜>|<｜tool▁outputs?▁end｜>",
        calls={
            **NAMED_CALLS,
            "open_pattern": r"\s*(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>(?:"
            r"function<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\n|"
            r"(?!function<｜tool▁sep｜>)(?P<name>[^\n<]+)<｜tool▁sep｜>)",
            "close_pattern": r"(?:\s*```)?\s*<｜tool▁call▁end｜>",
        },
        content={"close": ["</think>", "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>"]},
    ),
    Family(
        "GLM 4.5",
        marks=("<arg_key>",),
        start=r"<\|assistant\|>",
        calls={
            **NAMED_CALLS,
            "open_pattern": r"\s*<tool_call>\s*(?P<name>[^\s<]+)",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
            },
        },
        content={"close": "</think>"},  # which a prompt without reasoning ends with from 4.7 on
        efforts=("high", "max"),
    ),
    Family(
        "Qwen 3.5, Qwen 3 Coder",
        marks=("<function=",),
        start=f"{CHATML}|{BEGUN}",
        calls={
            **NAMED_CALLS,
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
        },
    ),
    Family(
        "Hermes, Qwen 2.5, Qwen 3",
        marks=("<tool_call>",),
        start=f"{CHATML}|{BEGUN}",
        calls=HERMES_CALLS,
    ),
    Family(
        "Mistral from 2025-06 on",
        marks=("[ARGS]",),
        start=r"\[/INST\]|\[/TOOL_RESULTS\]",
        reasoning={"open": ["[THINK]", "<think>"], "close": ["[/THINK]", "</think>"]},
        calls={
            **NAMED_CALLS,
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[^\[\s{]+)(?:\[CALL_ID\]\w*)?\[ARGS\]",
            "close_pattern": r"(?=\[TOOL_CALLS\])|</s>",
        },
        efforts=("none", "high"),
        short_ids=True,
        has_blocks=True,
    ),
    Family(
        "Mistral",
        marks=("[TOOL_CALLS]",),
        start=r"\[/INST\]|\[/TOOL_RESULTS\]",
        calls={
            "open": "[TOOL_CALLS]",
            "close": "</s>",
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
            "transform_each": True,
        },
        short_ids=True,
    ),
    Family(
        "Llama 3",
        marks=("<|start_header_id|>",),
        start=r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n",
        calls={
            "open_pattern": r'\A\s*(?:<\|python_tag\|>\s*)?(?=\{\s*"(?:type|name)"\s*:)',
            "close": ["<|eom_id|>", "<|eot_id|>"],
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{content.name}", "arguments": "{content.parameters}"},
            },
        },
    ),
    Family("Gemma 3", marks=("<start_of_turn>",), start=r"<start_of_turn>model\n", calls=None),
    Family("any other", marks=("",), start=BEGUN, calls=None),
)
"""The first family counts of which the chat template has a mark."""


def family_of(source: str) -> Family:
    """Return the family of a chat template."""
    return next(each for each in FAMILIES if any(mark in source for mark in each.marks))
