"""Anthropic's Messages API: requests, whole responses, events, errors and models.

The shapes are those of the `anthropic` Python SDK 2.12.0 (`anthropic/types`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, assert_never

from edge_client.formats.api_error import TOO_LONG, ApiError, wrong
from edge_client.formats.constraints import Refused
from edge_client.formats.detokenizer import Words
from edge_client.formats.dialect import ChoiceEnd, Dialect, Heading, Json, StopReason, Usage, named_frame
from edge_client.formats.fields import MAX_TEXT, Fields
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    Message,
    MessagePart,
    ReasoningAdded,
    arguments_object,
)
from edge_client.formats.openai import (
    MAX_ID,
    MAX_MESSAGES,
    MAX_TOOL_NAME,
    MAX_TOOLS,
    left_out,
    read_function,
    tool_call,
)
from edge_client.formats.parsed_request import (
    CallRule,
    ChatPrompt,
    ParsedRequest,
    Tool,
    Tools,
    json_grammar,
    make_chat,
    read_asked,
    read_stops,
    with_format,
)
from edge_client.formats.turn_order import BETWEEN, reminder

PING = b'event: ping\ndata: {"type": "ping"}\n\n'

BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""Claude Code's first line of the system prompt. Its values differ between requests of one conversation
(anthropics/claude-code#68900), so that a prefix cache would never match."""

RULES = {"auto": CallRule.AUTO, "any": CallRule.REQUIRED, "tool": CallRule.REQUIRED, "none": CallRule.NONE}

THINKING = ("enabled", "disabled", "adaptive", "between_tools")

EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Values of `effort`, and the nearest ones that chat templates know."""

OPAQUE = ("redacted_thinking", "server_tool_use", "mcp_tool_use", "compaction")
"""Types of blocks that only Anthropic's servers write and read, beside the results of their tools."""

ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    421: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",  # clients repeat such requests, as with Anthropic's own status 529
    504: "timeout_error",
}
"""Anthropic's types of errors by status, beside `invalid_request_error` and `api_error`."""

THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Details of an error, after which Anthropic's clients send whole conversations instead of `thread`."""

NOT_HERE = dict.fromkeys(("container", "stop_details"))
"""A message's fields that only Anthropic's servers fill."""


class AnthropicMessages(Dialect):
    """Reads and forms `/v1/messages`. A response has one text."""

    name, path, prefix, param = "messages", "/v1/messages", "msg_", "messages"
    comment = PING
    shortens = True
    refused: ClassVar[Refused] = {"n": ((1,), "send one request for each text")}

    def __init__(self, heading: Heading, words: Words | None) -> None:
        super().__init__(heading, words)
        self._index = 0  # of the open block, or of the next
        self._open = ""  # the open block's type, or its id if it is a call
        self._space = ""  # of a text block that has only this so far and has not begun

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        output = fields.object("output_config") or Fields({})
        chat = read_messages(fields, output)
        asked = read_asked(fields, chat)
        schema = _read_schema(output, "format") or _read_schema(fields, "output_format")  # its older name
        param = "output_config.format"
        return replace(
            with_format(asked, param, "" if schema is None else json_grammar(param, schema)),
            form={**asked.form, "max_tokens": asked.max_tokens},
            stops=read_stops(fields, "stop_sequences"),
        )

    def first(self, usage: Usage) -> list[Json]:
        return [{"type": "message_start", "message": self._message([], None, None, usage)}]

    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        chunks = [chunk for part in parts for chunk in self._part(part)]
        if ours:
            chunks = chunks or [{"type": "ping"}]
            chunks[-1]["forerun"] = ours
        return chunks

    def choice_end(self, end: ChoiceEnd, choice: int) -> list[Json]:
        return self._close()

    def end(self, end: ChoiceEnd, usage: Usage) -> list[Json]:
        reason, stopped_by = self._reason(end, usage)
        return [
            {
                "type": "message_delta",
                "delta": {**NOT_HERE, "stop_reason": reason, "stop_sequence": stopped_by},
                "usage": usage_json(usage),
                "forerun": end.ours,
            },
            {"type": "message_stop"},
        ]

    def whole(self, choices: Sequence[tuple[Message, ChoiceEnd]], usage: Usage) -> Json:
        ((message, end),) = choices
        content = list[Json]()
        if message.thought:
            content.append({"type": "thinking", "thinking": message.thought, "signature": self.heading.id})
        if message.text.strip():
            content.append({"type": "text", "text": message.text, "citations": None})
        content += [self._call(at, call.name, call.arguments) for at, call in enumerate(message.calls)]
        return {**self._message(content, *self._reason(end, usage), usage), "forerun": end.ours}

    @staticmethod
    def error(error: ApiError) -> Json:
        usual = "invalid_request_error" if error.status < 500 else "api_error"
        # Claude Code shortens its conversation after these words.
        text = f"prompt is too long: {error}" if error.code == TOO_LONG else str(error)
        details = {"details": THREADS} if error.param == "thread" else {}
        told = {"type": ERRORS.get(error.status, usual), "message": text, **details}
        return {"type": "error", "error": told}

    @classmethod
    def broken(cls, error: ApiError) -> bytes:
        return b"event: error\n" + super().broken(error)  # clients skip what has no name

    def framed(self, number: int, chunk: Json) -> bytes:
        return named_frame(number, chunk)

    def _message(self, content: list[Json], reason: str | None, stopped_by: str | None, usage: Usage) -> Json:
        return {
            "id": self.heading.id,
            "type": "message",
            "role": "assistant",
            "model": self.heading.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stopped_by,
            "usage": usage_json(usage),
            **NOT_HERE,
        }

    def _reason(self, end: ChoiceEnd, usage: Usage) -> tuple[str, str | None]:
        """Return why the text ended, and its stop sequence if one ended it."""
        match end.finish:
            case StopReason.CALLS:
                return "tool_use", None
            case StopReason.STOP:
                return ("end_turn", None) if end.stopped_by is None else ("stop_sequence", end.stopped_by)
            case StopReason.LENGTH:
                asked = self.heading.form["max_tokens"]
                is_asked = asked is not None and usage.text >= asked
                return "max_tokens" if is_asked else "model_context_window_exceeded", None
            case _:
                assert_never(end.finish)

    # Blocks -----------------------------------------------------------------------------------------------

    def _part(self, part: MessagePart) -> list[Json]:
        match part:
            case ContentAdded():
                return self._text(part.text)
            case ReasoningAdded() if part.text:
                begun = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                return [*begun, self._delta("thinking_delta", thinking=part.text)]
            case CallBegun():
                call = self._call(part.index, part.name, "")
                return self._begin(call["id"], call)
            case ArgumentsAdded() if part.text:
                return [self._delta("input_json_delta", partial_json=part.text)]
            case ReasoningAdded() | ArgumentsAdded():
                return []
            case _:
                assert_never(part)

    def _text(self, text: str) -> list[Json]:
        """Return the events of more text. A block begins with its first visible character, because models
        write empty lines between other blocks and clients refuse texts without any."""
        text = self._space + text
        is_open = self._open == "text"
        self._space = "" if is_open or text.strip() else text
        if not text or self._space:
            return []
        begun = self._begin("text", {"type": "text", "text": "", "citations": None})
        return [*begun, self._delta("text_delta", text=text)]

    def _begin(self, kind: str, block: Json) -> list[Json]:
        """Return the events that begin a block, unless it is open."""
        if self._open == kind:
            return []
        closed = self._close()
        self._open = kind
        return [*closed, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _close(self) -> list[Json]:
        """Return the events that end the open block, if there is one."""
        if not self._open:
            return []
        # Some clients send reasoning back only with a signature.
        is_signed = self._open == "thinking"
        signed = [self._delta("signature_delta", signature=self.heading.id)] if is_signed else []
        stop = {"type": "content_block_stop", "index": self._index}
        self._open, self._index = "", self._index + 1
        return [*signed, stop]

    def _delta(self, kind: str, **what: str) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **what}}

    def _call(self, index: int, name: str, arguments: str) -> Json:
        """Return a tool call. Arguments that the text's end cut off are left out."""
        return {
            "type": "tool_use",
            "id": f"toolu_{self.base}_{index}",
            "name": name,
            "input": arguments_object(arguments) or {},
            "caller": {"type": "direct"},
        }


def usage_json(usage: Usage) -> Json:
    """Return the tokens in Anthropic's fields, in which cached tokens are none of the input."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.text,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        **dict.fromkeys(("cache_creation", "inference_geo", "server_tool_use", "service_tier")),
    }


# Requests ---------------------------------------------------------------------------------------------------


def read_messages(fields: Fields, output: Fields) -> ChatPrompt:
    """Read a conversation and its tools. `output` is the request's `output_config`.

    Raises `ApiError` that names the message, the block or the tool.
    """
    turns = list(fields.entries("messages", MAX_MESSAGES))
    if not turns:
        raise wrong("messages", "messages must have at least one message")
    tools, later = _read_tools(fields)
    chat = _TurnReader(later)
    if system := _read_system(fields):
        chat.messages.append({"role": "system", "content": system})
    last_user = max((at for at, turn in enumerate(turns) if turn.any("role") == "user"), default=-1)
    for at, turn in enumerate(turns):
        chat.read(turn, at < last_user)
    if not chat.messages or chat.messages[-1]["role"] not in ("user", "tool"):
        words = "messages must end with the user's; this model does not continue a begun answer"
        raise wrong("messages", words, "unsupported_parameter")
    return _make_chat(fields, output, chat.messages, _read_choice(fields, (*tools, *chat.tools)))


def _make_chat(fields: Fields, output: Fields, messages: list[Json], tools: Tools) -> ChatPrompt:
    """Return the chat with its template's settings of reasoning."""
    effort = EFFORTS[output.choice("effort", "", tuple(EFFORTS))] if output.has("effort") else ""
    thinking = fields.object("thinking")
    if thinking is None:
        return make_chat(fields, messages, tools, effort)
    kind = _read_kind(thinking, THINKING)
    thinking.any("budget_tokens")  # no template has such a bound; `max_tokens` bounds reasoning, too
    thinking.any("display")  # clients that hide reasoning also skip it
    if kind == "disabled":
        return make_chat(fields, messages, tools, "none")
    chat = make_chat(fields, messages, tools, effort)
    return replace(chat, settings={"enable_thinking": True, **chat.settings})


def _read_schema(fields: Fields, name: str) -> Json | None:
    """Read the JSON schema that the whole text must match."""
    if (given := fields.object(name)) is None:
        return None
    _read_kind(given, ("json_schema",))
    return given.schema("schema")


def _read_tools(fields: Fields) -> tuple[list[Tool], dict[str, Tool]]:
    """Read the tools that can be called from the beginning, and those that a message must load first."""
    tools, later = list[Tool](), dict[str, Tool]()
    for entry in fields.entries("tools", MAX_TOOLS):
        kind = entry.text("type", "custom")
        if kind != "custom":
            entry.skip(f"only Anthropic's servers know tools of type {kind}")
            continue
        tool = read_function(entry, "input_schema")
        if entry.flag("defer_loading"):
            later[tool.name] = replace(tool, in_messages=True)
        else:
            tools.append(tool)
    return tools, later


def _read_choice(fields: Fields, listed: tuple[Tool, ...]) -> Tools:
    """Read how the tools may be called."""
    choice = fields.object("tool_choice")
    if choice is None:
        return Tools(listed)
    kind = _read_kind(choice, tuple(RULES))
    only = choice.text("name", longest=MAX_TOOL_NAME) if kind == "tool" else ""
    if kind == "tool" and not only:
        raise choice.wrong("name", "must be the name of a tool")
    is_single = choice.flag("disable_parallel_tool_use")
    return Tools(listed, RULES[kind], only, not is_single).checked()


def _read_kind(fields: Fields, allowed: tuple[str, ...]) -> str:
    """Read an object's type, which must be there."""
    if not fields.has("type"):
        raise fields.wrong("type", f"must be one of {', '.join(allowed)}")
    return fields.choice("type", "", allowed)


def _read_system(fields: Fields) -> str:
    """Read the system prompt without Claude Code's line that differs in every request."""
    texts = [BILLING.sub("", text) for text in _texts(_blocks(fields, "system"))]
    return BETWEEN.join(text for text in texts if text)


class _TurnReader:
    """Collects a chat template's messages from Anthropic's turns.

    Turns of one role in a row become one message, as Anthropic documents it and as many templates demand. A
    system message between turns becomes a reminder in the user's text, because many templates allow a system
    message only at the beginning. `later` are tools by name that messages may load. A tool is described where
    it is loaded, so that the prompt before that place stays the same.
    """

    def __init__(self, later: Mapping[str, Tool]) -> None:
        self.messages = list[Json]()
        self.tools = list[Tool]()  # that messages have loaded
        self._later = later
        self._names = dict[str, str]()  # of the tools called, by the call's id

    def read(self, turn: Fields, is_past: bool) -> None:
        """Read one turn. `is_past`: the user speaks after it."""
        match turn.text("role", longest=32):
            case "user":
                for block in _blocks(turn, "content"):
                    if block.any("type") == "tool_result":
                        self._result(block)
                    else:
                        self._add("user", BETWEEN.join(_texts([block])))
            case "assistant":
                self._assistant(turn)
            case "system":
                turn.any("output_config")  # the request's own counts
                texts = list(_texts(_blocks(turn, "content"), self._load))
                if texts and not (turn.text("clear_at") == "next_user_message" and is_past):
                    self._system(BETWEEN.join(texts))
            case _:
                raise turn.wrong("role", "must be one of user, assistant, system")

    def _system(self, text: str) -> None:
        if self.messages and self.messages[-1]["role"] != "system":
            self._add("user", reminder(text))
        else:
            self._add("system", text)

    def _result(self, block: Fields) -> None:
        identity = block.text("tool_use_id", longest=MAX_ID)
        text = BETWEEN.join(_texts(_blocks(block, "content"), self._load, is_result=True))
        content = f"Error: {text}" if block.flag("is_error") else text
        name = {"name": self._names[identity]} if identity in self._names else {}
        self.messages.append({"role": "tool", "content": content, "tool_call_id": identity, **name})

    def _assistant(self, turn: Fields) -> None:
        self._add("assistant", "")
        message = self.messages[-1]
        for block in _blocks(turn, "content"):
            match block.any("type"):
                case "thinking":
                    thought = message.get("reasoning_content", "") + block.text("thinking")
                    if thought:
                        message["reasoning_content"] = thought
                    block.any("signature")
                case "tool_use":
                    message.setdefault("tool_calls", []).append(self._read_call(block))
                case str(kind) if kind in OPAQUE or kind.endswith("_tool_result"):
                    block.skip(f"only Anthropic's servers read blocks of type {kind}")
                case _:
                    self._add("assistant", BETWEEN.join(_texts([block])))

    def _read_call(self, block: Fields) -> Json:
        identity, name = block.text("id", longest=MAX_ID), block.text("name", longest=MAX_TOOL_NAME)
        arguments = block.any("input")
        if not isinstance(arguments, dict):
            raise block.wrong("input", "must be an object")
        self._names[identity] = name
        return tool_call(identity, name, arguments)

    def _load(self, block: Fields) -> str:
        """Return the description of a tool that a block loads."""
        added = block.object("tool") or block
        name = added.text("tool_name") or added.text("name")
        tool = self._later.get(name)
        if tool is None:
            return f"The tool {name} is not there."
        if tool not in self.tools:
            self.tools.append(tool)
        return json.dumps(tool.to_json(), ensure_ascii=False)

    def _add(self, role: str, text: str) -> None:
        """Add text to the last message if it has this role, else a message."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": text})
        elif text:
            last = self.messages[-1]
            last["content"] = BETWEEN.join(filter(None, (last["content"], text)))


def _blocks(fields: Fields, name: str) -> list[Fields]:
    """Read a content: a string or a list of blocks. A missing one has none."""
    content = fields.any(name)
    if content is None:
        return []
    if isinstance(content, str):
        return [Fields({"type": "text", "text": content})]
    if not isinstance(content, list):
        raise fields.wrong(name, "must be a string or a list of blocks")
    return [fields.entry(name, at, each) for at, each in enumerate(content)]


def _texts(
    blocks: Iterable[Fields], load: Callable[[Fields], str] | None = None, is_result: bool = False
) -> Iterator[str]:
    """Yield the texts of blocks. `load` returns that of a block that loads a tool, where such may stand. In
    the result of a tool, a note takes the place of a block without text (`openai.read_content`)."""
    for block in blocks:
        match block.any("type"):
            case "text":
                if not block.has("text"):
                    raise block.wrong("text", "must be a string")
                yield block.text("text", longest=MAX_TEXT)
            case "search_result":
                head = f"{block.text('title')} ({block.text('source')})"
                yield BETWEEN.join((head, *_texts(_blocks(block, "content"), None, is_result)))
            case "tool_reference" | "tool_addition" if load is not None:
                yield load(block)
            case "tool_removal" if load is not None:
                block.skip("tools stay loaded")
            case kind if is_result:
                block.skip("the model reads only text")
                yield left_out(kind)
            case None:
                raise block.missing("type")
            case kind:
                words = f"{block.at}type is {kind!r}, which is not supported here; the model reads only text"
                raise wrong(f"{block.at}type", words[:400], "unsupported_parameter")
