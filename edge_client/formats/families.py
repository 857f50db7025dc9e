"""Knows families of models by the marks in their chat templates: how they write, and what they want to get.

The marks are facts of the models' own chat templates, as they are on the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from edge_client.formats.message import Json, MessageForm
from edge_client.formats.regions import (
    CALLS,
    CONTENT,
    REASONING,
    CallForm,
    MessageMarks,
    Region,
    mark,
    pattern,
)

HERMES_CALLS = Region(
    CALLS,
    # Qwen 2.5 Coder leaves its marks out.
    pattern(r'<tool_call>|\A\s*(?P<unmarked>```(?:json)?\s*|)(?=\{\s*"name"\s*:)'),
    mark("</tool_call>", "```"),
    calls=CallForm("name", "arguments"),
)
THINK = Region(REASONING, mark("<think>"), mark("</think>"))
"""The marks of reasoning of most models. They count where the chat template names them."""

ALL_ELSE = Region(CONTENT)
"""The content of most models: the text outside of all regions."""

BEGUN = r"(?=<think>\s*\Z)"
"""Finds the mark of reasoning that the prompt has already begun."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort`, from the least on."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    marks: tuple[str, ...]  # one of them is in the chat template
    start: str  # pattern before the message
    calls: Region | None  # None: the model has no notation of its own
    reasoning: Region | None = None  # None: `THINK`
    content: Region = ALL_ELSE
    short_ids: bool = False  # ids of calls must have nine letters or digits
    has_blocks: bool = False  # some templates want reasoning as a block of the content
    efforts: tuple[str, ...] = ()  # the values of `reasoning_effort`, from the least on; empty: any
    is_harmony: bool = False

    def form(self, source: str, has_own_calls: bool = True) -> MessageForm:
        """Return how the messages of a model with this chat template are read."""
        thinks = self.reasoning is not None or "<think>" in source or "</think>" in source
        return MessageForm(self.name, thinks, has_own_calls)

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
        reasoning=Region(REASONING, mark("<|channel>thought\n"), mark("<channel|>")),
        calls=Region(
            CALLS,
            pattern(r"<\|tool_call>call:(?P<name>[^{\s]+)"),
            mark("<tool_call|>"),
            calls=CallForm(quotes=('<|"|>', '<|"|>')),
        ),
        content=Region(CONTENT, close=mark("<turn|>", "<|tool_response>")),
    ),
    Family(  # https://cookbook.openai.com/articles/openai-harmony
        "gpt-oss",
        marks=("<|channel|>",),
        start=r"<\|start\|>assistant",
        reasoning=Region(
            REASONING,
            mark("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>analysis<|message|>"),
            mark("<|end|>"),
            join="\n\n",
        ),
        calls=Region(
            CALLS,
            pattern(
                r"(?:<\|start\|>assistant\s*)?(?:"
                r"to=functions\.(?P<name>[^<\s]+)\s*<\|channel\|>(?:commentary|analysis)|"
                r"<\|channel\|>(?:commentary|analysis)\s+to=functions\.(?P<name>[^<\s]+))" + HARMONY_TYPE
            ),
            mark("<|call|>", "<|end|>"),
            calls=CallForm(),
        ),
        content=Region(
            CONTENT,
            close=pattern(
                r"<\|(?:end|return|call)\|>|"
                r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)" + HARMONY_TYPE
            ),
            join="\n\n",
        ),
        efforts=("low", "medium", "high"),
        is_harmony=True,
    ),
    Family(
        "DeepSeek V3.2, V4",
        marks=("｜DSML｜",),
        start=r"<｜Assistant｜>|</function_results>",
        calls=Region(
            CALLS,
            pattern(r'(?:<｜DSML｜\w+>\s*)?<｜DSML｜invoke name="(?P<name>[^"]+)">'),
            mark("</｜DSML｜invoke>"),
            calls=CallForm(tags=(r'<｜DSML｜parameter name="(?P<key>[^"]+)"[^>]*>', "</｜DSML｜parameter>")),
        ),
        content=Region(
            CONTENT,
            close=pattern(r"</think>|</｜DSML｜(?:tool|function)_calls>|<｜end▁of▁sentence｜>"),
        ),
    ),
    Family(
        "DeepSeek V3, R1",
        marks=("<｜tool▁call▁begin｜>", "<｜Assistant｜>"),
        start=r"<｜Assistant｜>|<｜tool▁outputs?▁end｜>",
        calls=Region(
            CALLS,
            pattern(
                r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>(?:"
                r"function<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\n|"
                r"(?!function<｜tool▁sep｜>)(?P<name>[^\n<]+)<｜tool▁sep｜>)"
            ),
            pattern(r"(?:```\s*)?<｜tool▁call▁end｜>"),
            calls=CallForm(),
        ),
        content=Region(CONTENT, close=mark("</think>", "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>")),
    ),
    Family(
        "GLM 4.5",
        marks=("<arg_key>",),
        start=r"<\|assistant\|>",
        calls=Region(
            CALLS,
            pattern(r"<tool_call>\s*(?P<name>[^\s<]+)"),
            mark("</tool_call>"),
            calls=CallForm(tags=(r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>", "</arg_value>")),
        ),
        content=Region(
            CONTENT, close=mark("</think>")
        ),  # at the end of a prompt without reasoning from 4.7 on
        efforts=("high", "max"),
    ),
    Family(
        "Qwen 3.5, Qwen 3 Coder",
        marks=("<function=",),
        start=f"{CHATML}|{BEGUN}",
        calls=Region(
            CALLS,
            pattern(r"<tool_call>\s*<function=(?P<name>[^>\n]+)>"),
            pattern(r"</function>\s*</tool_call>"),
            calls=CallForm(tags=(r"<parameter=(?P<key>[^<>\n]+)>\n?", r"\n?</parameter>")),
        ),
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
        reasoning=Region(REASONING, mark("[THINK]", "<think>"), mark("[/THINK]", "</think>")),
        calls=Region(
            CALLS,
            pattern(r"\[TOOL_CALLS\]\s*(?P<name>[^\[\s{]+)(?:\[CALL_ID\]\w*)?\[ARGS\]"),
            pattern(r"(?=\[TOOL_CALLS\])|</s>"),
            calls=CallForm(),
        ),
        efforts=("none", "high"),
        short_ids=True,
        has_blocks=True,
    ),
    Family(
        "Mistral",
        marks=("[TOOL_CALLS]",),
        start=r"\[/INST\]|\[/TOOL_RESULTS\]",
        calls=Region(
            CALLS, mark("[TOOL_CALLS]"), mark("</s>"), calls=CallForm("name", "arguments", is_list=True)
        ),
        short_ids=True,
    ),
    Family(
        "Llama 3",
        marks=("<|start_header_id|>",),
        start=r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n",
        calls=Region(
            CALLS,
            pattern(r'\A\s*(?:<\|python_tag\|>\s*)?(?=\{\s*"(?:type|name)"\s*:)'),
            mark("<|eom_id|>", "<|eot_id|>"),
            calls=CallForm("name", "parameters"),
        ),
    ),
    Family("Gemma 3", marks=("<start_of_turn>",), start=r"<start_of_turn>model\n", calls=None),
    Family("any other", marks=("",), start=BEGUN, calls=None),
)
"""The first family counts of which the chat template has a mark."""


def family_of(source: str) -> Family:
    """Return the family of a chat template."""
    return next(each for each in FAMILIES if any(text in source for text in each.marks))


@lru_cache(maxsize=32)
def _marks(name: str, thinks: bool, has_own_calls: bool) -> MessageMarks:
    family = next(each for each in FAMILIES if each.name == name)
    calls = family.calls if has_own_calls else HERMES_CALLS
    reasoning = (family.reasoning or THINK) if thinks else None
    regions = tuple(each for each in (calls, reasoning) if each is not None)
    return MessageMarks(pattern(family.start), regions, family.content)


def begun_by(form: MessageForm, prompt: str) -> MessageForm:
    """Return the form of a message that begins behind a prompt."""
    return replace(form, prefix=marks_of(form).prefix(prompt))


def marks_of(form: MessageForm) -> MessageMarks:
    return _marks(form.family, form.thinks, form.has_own_calls)
