"""OpenAI's chat completion and its older text completion: requests, whole responses and chunks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, assert_never

from edge_client.formats.api_error import unsupported, wrong
from edge_client.formats.constraints import Refused
from edge_client.formats.detokenizer import TextSpan, Words, spelled, text_of
from edge_client.formats.dialect import DONE, ChoiceEnd, Dialect, Heading, Json, Usage
from edge_client.formats.fields import MAX_TEXT, Fields, is_too_deep
from edge_client.formats.infill import Gap
from edge_client.formats.json_text import well_formed
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    Message,
    MessagePart,
    ReasoningAdded,
    arguments_object,
)
from edge_client.formats.parsed_request import (
    MAX_TEXTS,
    CallRule,
    ChatPrompt,
    ParsedRequest,
    Prompt,
    Tool,
    Tools,
    make_chat,
    read_asked,
)

MAX_MESSAGES = 4096
MAX_LOGPROBS = 20
LEAST_LOGPROB = -9999.0
"""OpenAI's value for a very unlikely token. JSON has no infinity."""

MAX_TOOLS = 1024
"""Limit on tools. OpenAI's API allows 128."""

MAX_TOOL_NAME = 256
MAX_ID = 256
"""Limit on characters of a tool call's id."""

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXTS = ("text", "input_text", "output_text", "refusal")
"""Types of a message's parts that are text."""


class _OpenAi(Dialect):
    """Forms the chunks of both endpoints."""

    kind: ClassVar[str]  # of chunks
    last = DONE

    def end(self, end: ChoiceEnd, usage: Usage) -> list[Json]:
        if not self.heading.form["usage"]:
            return []
        return [{**self._object(self.kind, []), "usage": usage_json(usage)}]

    def choice_end(self, end: ChoiceEnd, choice: int) -> list[Json]:
        last = {**self._told(()), "finish_reason": end.finish.value}
        return [{**self._chunk(last, choice), "forerun": end.ours}]

    def whole(self, choices: Sequence[tuple[Message, ChoiceEnd]], usage: Usage) -> Json:
        told = [
            {"index": at, **self._choice(message, at), "finish_reason": end.finish.value}
            for at, (message, end) in enumerate(choices)
        ]
        whole = self._object(self.kind.removesuffix(".chunk"), told)
        return {**whole, "usage": usage_json(usage), "forerun": choices[0][1].ours}

    @abstractmethod
    def _choice(self, message: Message, choice: int) -> Json:
        """Return a whole message and its log-probabilities as a choice has them."""

    @abstractmethod
    def _told(self, spans: Sequence[TextSpan]) -> Json:
        """Return the text in a chunk's choice."""

    def _chunk(self, choice: Json, index: int) -> Json:
        return self._object(self.kind, [{"index": index, "logprobs": None, "finish_reason": None, **choice}])

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.heading.id,
            "object": kind,
            "created": self.heading.created,
            "model": self.heading.model,
            "system_fingerprint": self.heading.fingerprint,
            "choices": choices,
        }


class ChatCompletion(_OpenAi):
    """Reads and forms `/v1/chat/completions`."""

    name, path, prefix, param = "chat", "/v1/chat/completions", "chatcmpl-", "messages"
    kind = "chat.completion.chunk"
    refused: ClassVar[Refused] = {
        "previous_response_id": ((), "send the whole conversation, or use /v1/responses"),
        **dict.fromkeys(
            ("functions", "function_call"),
            (([], "none", "auto"), "use tools and tool_choice, the newer names"),
        ),
    }

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        prompt = read_chat(fields)
        wants = fields.flag("logprobs")
        top = fields.whole("top_logprobs", 0, 0, MAX_LOGPROBS)
        if top and not wants:
            raise wrong("top_logprobs", "top_logprobs needs logprobs: true")
        return read_asked(fields, prompt, top if wants else None)

    def first(self, usage: Usage) -> list[Json]:
        number = range(self.heading.form.get("n", 1))
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, index) for index in number]

    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        told = [self._part(part, choice) for part in parts] or [{"delta": {}}]
        chunks = [self._chunk(each, choice) for each in told]
        if ours:
            chunks[-1]["forerun"] = ours
        return chunks

    def _choice(self, message: Message, choice: int) -> Json:
        told: Json = {"role": "assistant", "content": message.text, "refusal": None, "annotations": []}
        if message.reasoning:
            told |= _reasoning(message.thought)
        if message.calls:
            told["tool_calls"] = [
                {
                    "id": self._call_id(at, choice),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for at, call in enumerate(message.calls)
            ]
            told["content"] = message.text or None
        return {"message": told, "logprobs": self._logprobs(message.content)}

    def _part(self, part: MessagePart, choice: int) -> Json:
        """Return a chunk's choice with one part of the message."""
        match part:
            case ContentAdded():
                return {**self._told(part.spans), "logprobs": self._logprobs(part.spans)}
            case ReasoningAdded():
                return {"delta": _reasoning(part.text)}
            case CallBegun():
                function = {"name": part.name, "arguments": ""}
                call = {"index": part.index, "id": self._call_id(part.index, choice), "type": "function"}
                return {"delta": {"tool_calls": [{**call, "function": function}]}}
            case ArgumentsAdded():
                call = {"index": part.index, "function": {"arguments": part.text}}
                return {"delta": {"tool_calls": [call]}}
            case _:
                assert_never(part)

    def _call_id(self, index: int, choice: int) -> str:
        """Return a call's id, the same in every chunk and after a restart."""
        return f"call_{self.base}_{choice}_{index}"

    def _told(self, spans: Sequence[TextSpan]) -> Json:
        return {"delta": {"content": text_of(spans)} if spans else {}}

    def _logprobs(self, spans: Sequence[TextSpan]) -> Json | None:
        if self.words is None or not spans:
            return None
        return {"content": logprob_entries(self.words, spans), "refusal": None}


class Completion(_OpenAi):
    """Reads and forms `/v1/completions`."""

    name, path, prefix, param = "text", "/v1/completions", "cmpl-", "prompt"
    kind = "text_completion"
    default_tokens = 16  # as OpenAI documents it

    def __init__(self, heading: Heading, words: Words | None) -> None:
        super().__init__(heading, words)
        self._offsets = dict[int, int]()  # characters so far, by choice

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        prompts = read_prompts(fields)
        prompt: Prompt = prompts if len(prompts) > 1 else prompts[0]
        if suffix := fields.text("suffix", longest=MAX_TEXT):
            if not isinstance(prompt, str):
                raise wrong("suffix", "suffix needs a prompt that is a string")
            prompt = Gap(prompt, suffix)
        logprobs = fields.whole("logprobs", 0, 0, MAX_LOGPROBS) if fields.has("logprobs") else None
        asked = read_asked(fields, prompt, logprobs)
        if len(prompts) * asked.n > MAX_TEXTS:
            most = f"with n {asked.n} send at most {MAX_TEXTS // asked.n} in one request"
            raise wrong("prompt", f"prompt is a list of {len(prompts)} prompts; {most}")
        return asked

    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        spans = [span for part in parts if isinstance(part, ContentAdded) for span in part.spans]
        chunk = self._chunk({**self._told(spans), "logprobs": self._logprobs(spans, choice)}, choice)
        return [{**chunk, "forerun": ours} if ours else chunk]

    def _choice(self, message: Message, choice: int) -> Json:
        return {**self._told(message.content), "logprobs": self._logprobs(message.content, choice)}

    def _told(self, spans: Sequence[TextSpan]) -> Json:
        return {"text": text_of(spans)}

    def _logprobs(self, spans: Sequence[TextSpan], choice: int) -> Json | None:
        if self.words is None or not spans:
            return None
        told: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offset = self._offsets.get(choice, 0)
        for each in spans:
            if each.token is not None and each.logprobs is not None:
                told["tokens"].append(spelled(self.words, [each.token]))
                told["token_logprobs"].append(_shown(each.logprobs.logprob))
                top = {spelled(self.words, [token]): _shown(logprob) for token, logprob in each.logprobs.top}
                told["top_logprobs"].append(top)
                told["text_offset"].append(offset)
            offset += len(each.text)
        self._offsets[choice] = offset
        return told


def read_prompts(fields: Fields) -> tuple[str | list[Any], ...]:
    """Read one or more texts, or their token ids, that are to be continued."""
    given = fields.any("prompt")
    is_batch = isinstance(given, list) and given and isinstance(given[0], str | list)
    prompts = tuple(given) if is_batch else (given,)
    if not all(isinstance(each, str | list) and each != [] for each in prompts):
        raise fields.wrong("prompt", "must be a string, a list of token ids, or a list of such prompts")
    return prompts


def read_chat(fields: Fields) -> ChatPrompt:
    """Read a chat's messages, its tools, and its template's own settings, as vLLM and llama-server do."""
    messages = fields.list("messages", MAX_MESSAGES)
    if not messages:
        raise wrong("messages", "messages must have at least one message")
    return make_chat(
        fields,
        [_read_message(fields.entry("messages", at, each)) for at, each in enumerate(messages)],
        read_tools(fields),
    )


def read_tools(fields: Fields) -> Tools:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`. Tools that are no functions are left out."""
    tools = list[Tool]()
    for tool in fields.entries("tools", MAX_TOOLS):
        if tool.text("type", "function") != "function":
            tool.skip("only functions can be called")
            continue
        function = tool.needed("function")
        tools.append(read_function(function))
    rule, only, allowed = _read_tool_choice(fields)
    listed = tuple(each for each in tools if allowed is None or each.name in allowed)
    return Tools(listed, rule, only, fields.flag("parallel_tool_calls", True)).checked()


def read_function(fields: Fields, parameters: str = "parameters") -> Tool:
    """Read a function's name, description and parameters, a JSON schema."""
    schema = fields.schema(parameters) if fields.has(parameters) else {}
    return Tool(
        read_name(fields),
        fields.text("description"),
        schema or {"type": "object", "properties": {}},
        fields.flag("strict"),
    )


def read_name(fields: Fields) -> str:
    """Read the name of a tool."""
    name = fields.text("name", longest=MAX_TOOL_NAME)
    if not name:
        raise fields.missing("name")
    return name


def _read_tool_choice(fields: Fields) -> tuple[CallRule, str, set[str] | None]:
    """Read the rule, the only function, and the allowed functions; None: all."""
    given = fields.any("tool_choice")
    if given is None:
        return CallRule.AUTO, "", None
    if isinstance(given, str) and given in {each.value for each in CallRule}:
        return CallRule(given), "", None
    if isinstance(given, dict) and isinstance(name := _function_name(given), str):
        return CallRule.REQUIRED, name, None
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        allowed = Fields(given, "tool_choice.").needed("allowed_tools")
        rule = CallRule(allowed.choice("mode", "auto", ("auto", "required")))
        return rule, "", {str(_function_name(each)) for each in allowed.list("tools", MAX_TOOLS)}
    must = "must be none, auto, required, or an object that names a function or allowed tools"
    raise fields.wrong("tool_choice", must)


def _function_name(chosen: Any) -> Any:
    """Return the name in an object that names a function; None if it is another."""
    if not isinstance(chosen, dict) or chosen.get("type") != "function":
        return None
    function = chosen.get("function")
    return chosen.get("name") or (function.get("name") if isinstance(function, dict) else None)


def _read_message(fields: Fields) -> Json:
    fields.only("audio", (), "the daemon reads only text")
    role = fields.text("role", longest=32)
    if role not in ROLES:
        raise fields.wrong("role", f"must be one of {', '.join(ROLES)}")
    if role == "developer":  # OpenAI's newer name, which templates lack
        role = "system"
    calls = _read_calls(fields) if role == "assistant" else []
    message: Json = {
        "role": role,
        "content": read_content(fields, "content", role in ("assistant", "tool"), role == "tool"),
    }
    if calls:
        message["tool_calls"] = calls
    if role == "assistant" and (thought := fields.text("reasoning_content") or fields.text("reasoning")):
        message["reasoning_content"] = thought
    if role == "tool" and (call := fields.text("tool_call_id", longest=MAX_ID)):
        message["tool_call_id"] = call
    if name := fields.text("name", longest=256):
        message["name"] = name
    return message


def _read_calls(fields: Fields) -> list[Json]:
    """Read the tool calls of an earlier answer. Templates want the arguments as an object."""
    calls = list[Json]()
    for call in fields.entries("tool_calls", MAX_TOOLS):
        function = call.needed("function")
        name, arguments = function.text("name", longest=MAX_TOOL_NAME), function.any("arguments")
        calls.append(tool_call(call.text("id", longest=MAX_ID), name, arguments))
    return calls


def tool_call(identity: str, name: str, arguments: object) -> Json:
    """Return a tool call as chat templates get it: with arguments as an object if they are one."""
    if isinstance(arguments, str):
        read = arguments_object(arguments)
        arguments = arguments if read is None or is_too_deep(read) else read
    function = {"name": name, "arguments": well_formed(arguments) if arguments is not None else {}}
    return {"id": identity, "type": "function", "function": function}


def read_content(
    fields: Fields, name: str = "content", is_optional: bool = False, is_result: bool = False
) -> str:
    """Read a string, or a list of text parts. In the result of a tool, a note takes the place of another
    part: agents send their history again and again, so an error would end the conversation."""
    content = fields.any(name)
    if isinstance(content, str):
        return content
    if content is None and is_optional:
        return ""
    if not isinstance(content, list):
        raise fields.wrong(name, "must be a string or a list of text parts")
    return "".join(_read_part(fields, name, at, part, is_result) for at, part in enumerate(content))


def _read_part(fields: Fields, name: str, at: int, part: Any, is_result: bool) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if kind in TEXTS else None
    if isinstance(text, str):
        return text
    if is_result:
        return left_out(kind)
    entry = fields.entry(name, at, part)
    if kind is None:
        raise entry.missing("type")
    if kind in TEXTS:
        raise entry.wrong("refusal" if kind == "refusal" else "text", "must be a string")
    raise unsupported(f"{fields.at}{name}", f"a part of type {str(kind)!r:.80} is not supported; use text")


def left_out(kind: object) -> str:
    """Return what a model reads in place of a part of a tool's result, such as an image."""
    return f"[{kind if isinstance(kind, str) else 'part':.64} left out: this model reads only text]"


def usage_json(usage: Usage) -> Json:
    """Return the tokens in OpenAI's fields."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.text,
        "total_tokens": usage.prompt + usage.text,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": usage.rejected,
        },
    }


def _reasoning(text: str) -> Json:
    """Return reasoning under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


def logprob_entries(words: Words | None, spans: Sequence[TextSpan]) -> list[Json]:
    """Return the log-probabilities of the spans' tokens, with alternatives; none without `words`."""
    entries = list[Json]()
    for each in spans:
        if words is not None and each.token is not None and each.logprobs is not None:
            top = [_entry(words, token, logprob) for token, logprob in each.logprobs.top]
            entries.append({**_entry(words, each.token, each.logprobs.logprob), "top_logprobs": top})
    return entries


def _shown(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _entry(words: Words, token: int, logprob: float) -> dict[str, Any]:
    return {"token": spelled(words, [token]), "logprob": _shown(logprob), "bytes": list(words.piece(token))}
