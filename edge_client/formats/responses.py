"""OpenAI's Responses API: requests, whole responses and events.

The format is that of https://developers.openai.com/api/reference/resources/responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from common.sampling import SamplingParams
from edge_client.formats.api_error import TOO_LONG, ApiError, unsupported
from edge_client.formats.constraints import Refused
from edge_client.formats.detokenizer import TextSpan, Words, text_of
from edge_client.formats.dialect import ChoiceEnd, Dialect, Heading, Json, StopReason, Usage, named_frame
from edge_client.formats.fields import MAX_TEXT, Fields
from edge_client.formats.json_text import json_text, read_json
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    Message,
    MessagePart,
    ReasoningAdded,
)
from edge_client.formats.openai import MAX_LOGPROBS, logprob_entries
from edge_client.formats.parsed_request import (
    ParsedRequest,
    make_chat,
    read_asked,
    read_format,
    read_limit,
    with_format,
)
from edge_client.formats.response_items import INPUT, ReadTools, read_items

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that asks for log-probabilities."""

REPEATED = (
    "instructions",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)
"""Fields of a request that a response repeats as they are."""


class Responses(Dialect):
    """Reads and forms `/v1/responses`.

    A response is a list of items: reasoning, messages and calls. One item is open at a time.
    """

    name, path, prefix, param = "responses", "/v1/responses", "resp_", "input"
    refused: ClassVar[Refused] = {
        "n": ((1,), "a response has one text"),
        "background": ((False,), "name the stream with X-Conversation-Id to read it again"),
        "conversation": ((), "use previous_response_id"),
        "prompt": ((), "send the prompt's own text as input"),
    }

    def __init__(self, heading: Heading, words: Words | None) -> None:
        super().__init__(heading, words)
        self._output = list[Json]()  # items that are done
        self._item: Json | None = None  # the open one
        self._text = list[str]()  # of the open item
        self._logprobs = list[Json]()  # of the open message
        self._held = list[TextSpan]()  # white space that may begin a message
        self._num_calls = 0
        self._ours: Json = {}  # our own object, for the next event

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        items, kept = read_items(fields, fields.text("instructions", longest=MAX_TEXT))
        tools, reasoning = ReadTools(fields), _read_reasoning(fields)
        text = fields.object("text") or Fields({})
        grammar, form = read_format(text.object("format"), "text.format")
        chat = make_chat(fields, items, tools.tools, reasoning.get("effort") or "")
        asked = read_asked(fields, chat, _read_logprobs(fields))
        if asked.revise:
            words = "forerun.revise is not supported here; use /v1/chat/completions"
            raise unsupported("forerun.revise", words)
        told = {
            **_told(fields, asked),
            "max_output_tokens": read_limit(fields, "max_output_tokens") or asked.max_tokens or None,
            "parallel_tool_calls": tools.tools.parallel,
            "reasoning": reasoning or None,
            "text": {"format": form},
            "tools": tools.told,
        }
        return replace(
            with_format(asked, "text.format", grammar),
            max_tokens=told["max_output_tokens"],
            form={"told": told, "calls": tools.calls, "input": kept if told["store"] else []},
        )

    @staticmethod
    def drawn_by(form: Json, sampling: SamplingParams) -> Json:
        return {**form, "told": {**form["told"], **_sampling(sampling)}}

    # Events -----------------------------------------------------------------------------------------------

    def first(self, usage: Usage) -> list[Json]:
        begun = self._response("in_progress")
        return [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]

    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        chunks = [chunk for part in parts for chunk in self._part(part)]
        return self._marked(chunks, ours)

    def choice_end(self, end: ChoiceEnd, choice: int) -> list[Json]:
        chunks = self._write_message(self._held) if self._held and not self._output and not self._item else []
        chunks += self._close("incomplete" if end.finish is StopReason.LENGTH else "completed")
        return self._marked(chunks, {})

    def end(self, end: ChoiceEnd, usage: Usage) -> list[Json]:
        is_cut = end.finish is StopReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        response = self._response(
            status,
            completed_at=None if is_cut else self.heading.created + round(end.ours["elapsed_ms"] / 1e3),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage=usage_json(usage),
        )
        last = {"type": f"response.{status}", "response": {**response, "forerun": end.ours}}
        return self._marked([last], {})

    def failed(self, error: ApiError) -> list[Json]:
        told = {"code": _code(error), "message": _message(error)}
        return [{"type": "response.failed", "response": self._response("failed", error=told)}]

    def whole(self, choices: Sequence[tuple[Message, ChoiceEnd]], usage: Usage) -> Json:
        (message, end), *_ = choices
        self.added(_parts(message), {}, 0)
        self.choice_end(end, 0)
        (last,) = self.end(end, usage)
        response: Json = last["response"]
        return response

    @classmethod
    def again(cls, response: Json) -> list[bytes]:
        """Return the events of a whole response, with the text of each item in one piece."""
        changing = ("status", "completed_at", "incomplete_details", "forerun")
        told = {name: value for name, value in response.items() if name not in changing}
        form = {"told": told, "calls": {str(at): _called(item) for at, item in enumerate(response["output"])}}
        dialect = cls(Heading(response["id"], response["created_at"], response["model"], "", form), None)
        chunks = dialect.first(Usage(0))
        for at, item in enumerate(response["output"]):
            chunks += dialect._again(at, item)
        chunks.append({"type": f"response.{response['status']}", "response": response})
        return [dialect.framed(number, chunk) for number, chunk in enumerate(chunks, 1)]

    def _again(self, at: int, item: Json) -> list[Json]:
        match item:
            case {"type": "message", "content": [{"text": text, "logprobs": logprobs}]}:
                chunks = self._write_message([TextSpan(text, None)])
                self._logprobs = logprobs
                chunks[-1] |= {"logprobs": logprobs} if text else {}
            case {"type": "reasoning", "content": [{"text": text}]}:
                chunks = self._write_reasoning(text)
            case {"type": "custom_tool_call"}:
                chunks = self._begin_call(str(at))
                self._text.append(json_text({INPUT: item[INPUT]}))
            case _:
                chunks = [*self._begin_call(str(at)), *self._part(ArgumentsAdded(0, item["arguments"]))]
        return [*chunks, *self._close(item["status"])]

    def framed(self, number: int, chunk: Json) -> bytes:
        return named_frame(number, {"type": chunk["type"], "sequence_number": number - 1, **chunk})

    # Items ------------------------------------------------------------------------------------------------

    def _part(self, part: MessagePart) -> list[Json]:
        match part:
            case ContentAdded():
                return self._write_content(part.spans)
            case ReasoningAdded():
                return self._write_reasoning(part.text)
            case CallBegun():
                return self._begin_call(part.name)
            case ArgumentsAdded():
                self._text.append(part.text)
                assert self._item is not None, "arguments follow their call's beginning"
                is_custom = self._item["type"] == "custom_tool_call"  # its input is known at its end
                return [] if is_custom else [self._event("function_call_arguments.delta", delta=part.text)]

    def _write_content(self, spans: Sequence[TextSpan]) -> list[Json]:
        """Add text to the message. White space alone begins none, as it often stands between two calls."""
        if not self._is_open("message") and not text_of([*self._held, *spans]).strip():
            self._held += spans
            return []
        return self._write_message([*self._held, *spans])

    def _write_message(self, spans: Sequence[TextSpan]) -> list[Json]:
        chunks = list[Json]()
        if not self._is_open("message"):
            chunks = self._open({"type": "message", "role": "assistant", "content": []}, "msg")
            chunks.append(self._event("content_part.added", content_index=0, part=_output_text("", [])))
        self._held = []
        text, entries = text_of(spans), logprob_entries(self.words, spans)
        if text or entries:
            self._text.append(text)
            self._logprobs += entries
            chunks.append(self._event("output_text.delta", content_index=0, delta=text, logprobs=entries))
        return chunks

    def _write_reasoning(self, text: str) -> list[Json]:
        if not text:
            return []
        chunks = list[Json]()
        if not self._is_open("reasoning"):
            chunks = self._open({"type": "reasoning", "summary": [], "content": []}, "rs")
            chunks.append(self._event("content_part.added", content_index=0, part=_reasoning("")))
        self._text.append(text)
        return [*chunks, self._event("reasoning_text.delta", content_index=0, delta=text)]

    def _begin_call(self, called: str) -> list[Json]:
        own = self.heading.form["calls"].get(called, {"type": "function", "name": called, "namespace": ""})
        item = {"call_id": f"call_{self.base}_{self._num_calls}", "name": own["name"]}
        if own["namespace"]:
            item["namespace"] = own["namespace"]
        self._num_calls += 1
        if own["type"] == "custom":
            return self._open({"type": "custom_tool_call", **item, INPUT: ""}, "ctc")
        return self._open({"type": "function_call", **item, "arguments": ""}, "fc")

    def _open(self, item: Json, prefix: str) -> list[Json]:
        """Begin an item after the end of the one before."""
        chunks = self._close("completed")
        self._item = {"id": f"{prefix}_{self.base}_{len(self._output)}", "status": "in_progress", **item}
        return [*chunks, self._item_event("output_item.added")]

    def _close(self, status: str) -> list[Json]:
        """End the open item, if any."""
        self._held = []
        if self._item is None:
            return []
        chunks = self._closing(self._item, "".join(self._text))
        self._item["status"] = status
        chunks.append(self._item_event("output_item.done"))
        self._output.append(self._item)
        self._item, self._text, self._logprobs = None, [], []
        return chunks

    def _closing(self, item: Json, text: str) -> list[Json]:
        """Put the whole text into an item and return the events that tell it."""
        match item["type"]:
            case "message":
                part = _output_text(text, self._logprobs)
                item["content"] = [part]
                done = self._event("output_text.done", content_index=0, text=text, logprobs=self._logprobs)
                return [done, self._event("content_part.done", content_index=0, part=part)]
            case "reasoning":
                part = _reasoning(text)
                item["content"] = [part]
                done = self._event("reasoning_text.done", content_index=0, text=text)
                return [done, self._event("content_part.done", content_index=0, part=part)]
            case "custom_tool_call":
                item[INPUT] = text = _custom_input(text)
                delta = self._event("custom_tool_call_input.delta", delta=text)
                return [delta, self._event("custom_tool_call_input.done", input=text)]
            case _:
                item["arguments"] = text
                return [self._event("function_call_arguments.done", arguments=text)]

    def _is_open(self, kind: str) -> bool:
        return self._item is not None and self._item["type"] == kind

    # Objects ----------------------------------------------------------------------------------------------

    def _event(self, kind: str, **more: Any) -> Json:
        assert self._item is not None, "events of an item"
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        return {"type": f"response.{kind}", **place, **more}

    def _item_event(self, kind: str) -> Json:
        assert self._item is not None, "events of an item"
        return {"type": f"response.{kind}", "output_index": len(self._output), "item": dict(self._item)}

    def _response(self, status: str, **more: Any) -> Json:
        return {
            "id": self.heading.id,
            "object": "response",
            "created_at": self.heading.created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            **self.heading.form["told"],
            "model": self.heading.model,
            "output": list(self._output),
            "usage": None,
            **more,
        }

    def _marked(self, chunks: list[Json], ours: Json) -> list[Json]:
        """Return the chunks with our own object on the last of them. Without a chunk it waits for the next.

        Tokens' origins do not wait: after a restart the tokens before them are not sent again.
        """
        for name, value in ours.items():
            before = self._ours.get(name)
            self._ours[name] = [*before, *value] if isinstance(before, list) else value
        if not chunks and "origins" in ours:
            chunks = [self._no_news()]
        if chunks and self._ours:
            chunks[-1]["forerun"] = self._ours
            self._ours = {}
        return chunks

    def _no_news(self) -> Json:
        """Return an event that adds nothing."""
        match self._item:
            case None:
                return {"type": "response.in_progress", "response": self._response("in_progress")}
            case {"type": "message"}:
                return self._event("output_text.delta", content_index=0, delta="", logprobs=[])
            case {"type": "reasoning"}:
                return self._event("reasoning_text.delta", content_index=0, delta="")
            case {"type": "custom_tool_call"}:
                return self._event("custom_tool_call_input.delta", delta="")
            case _:
                return self._event("function_call_arguments.delta", delta="")


def usage_json(usage: Usage) -> Json:
    """Return the tokens in the fields of this API."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.text,
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": usage.rejected,
        },
        "total_tokens": usage.prompt + usage.text,
    }


def _told(fields: Fields, asked: ParsedRequest) -> Json:
    """Return the plain values of a request that its response repeats."""
    return {name: fields.any(name) for name in REPEATED} | {
        **_sampling(asked.sampling),
        "metadata": fields.any("metadata") or {},
        "service_tier": "default",
        "store": fields.flag("store", True),
        "tool_choice": fields.any("tool_choice") or "auto",
        "top_logprobs": asked.logprobs or 0,
        "truncation": "disabled",
    }


def _called(item: Json) -> Json:
    """Return what a whole item's call is, as `ReadTools.calls` has it."""
    kind = "custom" if item["type"] == "custom_tool_call" else "function"
    return {"type": kind, "name": item.get("name", ""), "namespace": item.get("namespace", "")}


def _sampling(sampling: SamplingParams) -> Json:
    """Return the values by which the text is drawn, under OpenAI's names."""
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    return {name: getattr(sampling, name) for name in names}


def _read_reasoning(fields: Fields) -> Json:
    """Return how much is to be reasoned. No summary is written, as `auto` allows: the reasoning is shown."""
    given = fields.object("reasoning")
    if given is None:
        return {}
    effort, summary = given.text("effort", longest=32), given.any("summary")
    return {"effort": effort or None, "summary": "auto" if summary == "auto" else None}


def _read_logprobs(fields: Fields) -> int | None:
    """Return how many alternatives are shown with each token; None without log-probabilities."""
    top = fields.whole("top_logprobs", 0, 0, MAX_LOGPROBS)
    return top if fields.has("top_logprobs") or LOGPROBS in fields.list("include", 64) else None


def _parts(message: Message) -> list[MessagePart]:
    calls = [
        part
        for at, call in enumerate(message.calls)
        for part in (CallBegun(at, call.name), ArgumentsAdded(at, call.arguments))
    ]
    return [ReasoningAdded(tuple(message.reasoning)), ContentAdded(tuple(message.content)), *calls]


def _custom_input(arguments: str) -> str:
    """Return the text that a custom tool gets. A model may have written it without its object."""
    try:
        value = read_json(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else value
    return text if isinstance(text, str) else arguments


def _code(error: ApiError) -> str:
    """Return an error's code among those that clients know."""
    if error.code == TOO_LONG:
        return TOO_LONG
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"


def _message(error: ApiError) -> str:
    """Return an error's message. Codex takes the time of its next attempt from these words."""
    return f"{error}; please try again in {error.retry_after:g}s" if error.retry_after else str(error)


def _output_text(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _reasoning(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}
