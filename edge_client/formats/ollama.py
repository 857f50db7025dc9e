"""Ollama's chat and generate, for programs that speak nothing else.

Fields, their meaning and the final object: Ollama's docs/api.md and api/types.go.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar, assert_never

from edge_client.formats.api_error import ApiError
from edge_client.formats.constraints import TEXT, Refused, refuse
from edge_client.formats.detokenizer import Words
from edge_client.formats.dialect import ChoiceEnd, Dialect, Heading, Json, StopReason, Usage
from edge_client.formats.fields import MAX_TEXT, Fields
from edge_client.formats.infill import Gap
from edge_client.formats.json_text import json_text
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    Message,
    MessagePart,
    ReasoningAdded,
    ToolCall,
    arguments_object,
)
from edge_client.formats.openai import MAX_MESSAGES, left_out, read_chat
from edge_client.formats.parsed_request import (
    MOST,
    ONE_TEXT,
    ParsedRequest,
    Prompt,
    json_grammar,
    read_asked,
    read_model,
    with_format,
)

LINES = "application/x-ndjson"
OWN_TEXT_ONLY = "the daemon reads only text"
UNLOADS = re.compile(r"0+(\.0*)?([nmµu]?s|m|h)?")
"""Matches a `keep_alive` of no time."""


class _Ollama(Dialect):
    """Forms the objects of both endpoints, one a line. Lines have no ids, so a named stream is read again by
    bytes (`from=`)."""

    prefix, media_type, comment = "ollama-", LINES, b""
    refused: ClassVar[Refused] = {
        "logprobs": ((False,), "use /v1/chat/completions"),
        "format": None,  # Ollama's own
        "response_format": (TEXT, "use format"),
    }

    def __init__(self, heading: Heading, words: Words | None) -> None:
        super().__init__(heading, words)
        self._call: ToolCall | None = None  # incomplete
        self._num_calls = 0  # complete

    @classmethod
    def asks_nothing(cls, body: Json) -> bool:
        """Ollama loads the model, or unloads it after `keep_alive` seconds."""
        return body.get(cls.param) in (None, "", []) and not body.get("suffix")

    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        """Return an object for each part, and one for each call as soon as it is complete."""
        chunks = [self._object(said) for part in parts for said in self._told(part)]
        if ours:
            chunks = chunks or [self._object(self._said())]
            chunks[-1]["forerun"] = ours
        return chunks

    def choice_end(self, end: ChoiceEnd, choice: int) -> list[Json]:
        return [self._object(said) for said in self._ended_call()]

    def end(self, end: ChoiceEnd, usage: Usage) -> list[Json]:
        return [self._last(self._said(), end, usage)]

    def whole(self, choices: Sequence[tuple[Message, ChoiceEnd]], usage: Usage) -> Json:
        if not choices:
            unloads = UNLOADS.fullmatch(str(self.heading.form["keep_alive"]))
            return {
                **self._object(self._said()),
                "done": True,
                "done_reason": "unload" if unloads else "load",
            }
        ((message, end),) = choices
        calls = [self._told_call(at, call) for at, call in enumerate(message.calls)]
        return self._last(self._said(message.text, message.thought, calls), end, usage)

    @staticmethod
    def error(error: ApiError) -> Json:
        return {"error": str(error)}

    @classmethod
    def broken(cls, error: ApiError) -> bytes:
        return _line(cls.error(error))

    def framed(self, number: int, chunk: Json) -> bytes:
        return _line(chunk)

    @abstractmethod
    def _said(self, text: str = "", thought: str = "", calls: Sequence[Json] = ()) -> Json:
        """Return the fields of an object that hold the message."""

    def _told(self, part: MessagePart) -> list[Json]:
        """Return the messages of a part, which may complete the call before it."""
        match part:
            case ContentAdded():
                return [*self._ended_call(), *([self._said(part.text)] if part.text else [])]
            case ReasoningAdded():
                return [*self._ended_call(), *([self._said(thought=part.text)] if part.text else [])]
            case CallBegun():
                ended = self._ended_call()
                self._call = ToolCall(part.name, "")
                return ended
            case ArgumentsAdded():
                assert self._call is not None, "begun before"
                self._call.arguments += part.text
                return []
            case _:
                assert_never(part)

    def _ended_call(self) -> list[Json]:
        """Return the message with the call that is complete now."""
        call, self._call = self._call, None
        if call is None:
            return []
        self._num_calls += 1
        return [self._said(calls=[self._told_call(self._num_calls - 1, call)])]

    def _told_call(self, at: int, call: ToolCall) -> Json:
        return {"id": f"call_{self.heading.id.removeprefix(self.prefix)}_{at}", **_call(at, call)}

    def _object(self, said: Json) -> Json:
        created = datetime.fromtimestamp(self.heading.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"model": self.heading.model, "created_at": created, **said, "done": False}

    def _last(self, said: Json, end: ChoiceEnd, usage: Usage) -> Json:
        """Return the final object. Times are in nanoseconds; the prompt's ends with the first token."""
        ours = end.ours
        elapsed, waited, first = (ours[f"{name}_ms"] for name in ("elapsed", "waited", "first_token"))
        return {
            **self._object(said),
            "done": True,
            "done_reason": "length" if end.finish is StopReason.LENGTH else "stop",
            "total_duration": _nanoseconds(elapsed),
            "load_duration": _nanoseconds(waited),
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": _nanoseconds(max(0.0, first - waited)),
            "eval_count": usage.text,
            "eval_duration": _nanoseconds(max(0.0, elapsed - first)),
            "forerun": ours,
        }


class OllamaChat(_Ollama):
    """Reads and forms `/api/chat`."""

    name, path, param = "ollama_chat", "/api/chat", "messages"

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        messages = [_message(each) for each in fields.entries("messages", MAX_MESSAGES)]
        chat = read_chat(fields.having(messages=messages, reasoning_effort=_effort(fields)))
        _identify(chat.messages)
        return _read_asked(fields, chat)

    def _said(self, text: str = "", thought: str = "", calls: Sequence[Json] = ()) -> Json:
        message: Json = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = list(calls)
        return {"message": message}


class OllamaGenerate(_Ollama):
    """Reads and forms `/api/generate`."""

    name, path, param = "ollama_generate", "/api/generate", "prompt"
    refused: ClassVar[Refused] = {
        **_Ollama.refused,
        "template": (("",), "the prompt is the target's own template; use raw to send a whole prompt"),
        "images": (([],), OWN_TEXT_ONLY),
        "context": (([],), "send the messages to /api/chat"),
    }

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        return _read_asked(fields, _generate_prompt(fields))

    def _said(self, text: str = "", thought: str = "", calls: Sequence[Json] = ()) -> Json:
        return {"response": text, "thinking": thought} if thought else {"response": text}


def _generate_prompt(fields: Fields) -> Prompt:
    """Read the prompt: a text with a gap, a whole prompt, or a chat of one question."""
    prompt, system = fields.text("prompt", longest=MAX_TEXT), fields.text("system")
    effort = _effort(fields)
    if suffix := fields.text("suffix", longest=MAX_TEXT):
        return Gap(prompt, suffix)
    if fields.flag("raw"):
        return prompt
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    return read_chat(Fields({"messages": messages, "reasoning_effort": effort}))


def _read_asked(fields: Fields, prompt: Prompt) -> ParsedRequest:
    fields.any("keep_alive")  # the daemon loads and unloads its models by itself
    options = fields.object("options") or Fields({}, "options.")
    refuse(options)
    length = options.whole("num_predict", -1, -2, MOST)  # -1 and -2: as many as fit
    own: Json = {
        "model": read_model(fields),
        "stream": fields.flag("stream", True),
        "forerun": fields.any("forerun"),
        "max_tokens": length if length > 0 else None,
    }
    grammar = _read_format(fields)
    asked = read_asked(options.having(**own, **ONE_TEXT), prompt)
    return with_format(asked, "format", grammar)


def _read_format(fields: Fields) -> str:
    """Return the grammar of `format`: empty for text."""
    given = fields.any("format")
    if given in (None, ""):
        return ""
    if given == "json":
        return json_grammar("format")
    if not isinstance(given, dict):
        raise fields.wrong("format", 'must be "json" or a JSON schema')
    return json_grammar("format", given)


def _effort(fields: Fields) -> str | None:
    """Return the effort of reasoning that `think` names: a flag, or a level."""
    think = fields.any("think")
    if isinstance(think, bool):
        return "medium" if think else "none"
    return fields.text("think", longest=32) or None


def _message(message: Fields) -> Json:
    """Return a message in OpenAI's fields. What is wrong in it is found there."""
    content = "" if message.any("content") is None else message.any("content")
    if message.any("role") == "tool" and message.any("images") and isinstance(content, str):
        content = f"{content}\n{left_out('images')}".strip()
    else:
        message.only("images", ([],), OWN_TEXT_ONLY)
    return message.having(
        images=None,
        thinking=None,
        tool_name=None,
        content=content,
        reasoning_content=message.any("thinking"),
        name=message.any("tool_name") or message.any("name"),
    ).values


def _identify(messages: Sequence[Json]) -> None:
    """Give ids to calls and results without them, for templates that need ids. A result belongs to the first
    call of its name that has none yet, or else to the first call."""
    waiting = dict[str, str]()  # names of calls without a result, by their ids
    for at, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = call["id"] or f"call_{at}_{number}"
            waiting[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and waiting:
            named = (identity for identity, name in waiting.items() if name == message.get("name"))
            waiting.pop(message.setdefault("tool_call_id", next(named, next(iter(waiting)))), None)


def _call(at: int, call: ToolCall) -> Json:
    """Return a call with its arguments as an object. Text that is no object has the name `arguments`."""
    arguments = arguments_object(call.arguments)
    if arguments is None:
        arguments = {"arguments": call.arguments}
    return {"function": {"index": at, "name": call.name, "arguments": arguments}}


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def _line(chunk: Json) -> bytes:
    return json_text(chunk).encode() + b"\n"
