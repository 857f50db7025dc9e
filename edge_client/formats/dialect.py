"""The interface of an endpoint that writes texts: it reads requests and forms responses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from common.sampling import SamplingParams
from edge_client.formats.api_error import ApiError
from edge_client.formats.constraints import NOT_DONE, Refused, refuse, with_forms
from edge_client.formats.detokenizer import Words
from edge_client.formats.fields import Fields
from edge_client.formats.json_text import json_text
from edge_client.formats.message import Message, MessagePart
from edge_client.formats.parsed_request import ParsedRequest

Json = dict[str, Any]

SSE = "text/event-stream"
KEEP_ALIVE = b": waiting\n"
"""A comment. With a blank line it would be an event without data, on which OpenAI's Python SDK fails."""

DONE = b"data: [DONE]\n\n"
"""OpenAI's last event."""


class StopReason(Enum):
    """Names why a message ended."""

    STOP = "stop"  # the model's own end, or a stop string
    LENGTH = "length"
    CALLS = "tool_calls"  # the model's own end after a tool call, or a stop string behind a whole one


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts the tokens of one response. Its texts' tokens include those of reasoning."""

    prompt: int
    cached: int = 0  # of the prompt, not computed anew by the target
    text: int = 0  # of all choices
    reasoning: int = 0
    accepted: int = 0  # proposed by this device and accepted
    rejected: int = 0  # proposed and not accepted


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """Holds how one choice ended."""

    finish: StopReason
    stopped_by: str | None  # the stop string, if one ended it
    ours: Json  # our own object, for the endpoints that show it


@dataclass(frozen=True, slots=True)
class Heading:
    """Holds what all objects of one response share.

    `form` is JSON that `Dialect.read` took from the request for the response, such as values to be repeated.
    """

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str  # of the target, on which the text depends beside the request
    form: Json


class Dialect(ABC):
    """Forms one response in an endpoint's JSON. `words` spell its log-probabilities.

    A streamed response is `first`, any number of `added`, one `choice_end` for each choice, and `end`; or it
    breaks off with `failed`. All chunks must be a function of the parts alone, however these were cut: a text
    that goes on after a restart is read again from its beginning, and what was sent is not sent again.
    """

    name: ClassVar[str]  # in the journal
    path: ClassVar[str]
    prefix: ClassVar[str]  # of ids
    param: ClassVar[str]  # the field that holds the prompt
    refused: ClassVar[Refused] = {}  # beside those that no endpoint supports
    default_tokens: ClassVar[int | None] = None  # without a length in the request; None: all that fit
    shortens: ClassVar[bool] = False  # a length beyond the context ends the text there, and is no error
    media_type: ClassVar[str] = SSE
    comment: ClassVar[bytes] = KEEP_ALIVE  # sent in silence; empty: nothing is sent
    last: ClassVar[bytes] = b""  # after all chunks of a whole stream

    def __init__(self, heading: Heading, words: Words | None) -> None:
        self.heading = heading
        self.words = words

    @property
    def base(self) -> str:
        """Return what all ids within this response share."""
        return self.heading.id.removeprefix(self.prefix)

    @classmethod
    def parse(cls, fields: Fields) -> ParsedRequest:
        """Refuse a request's fields that are not supported, read the others, and log those that are ignored.
        Raises `ApiError` that names the field."""
        refuse(fields, {**NOT_DONE, **cls.refused})
        asked = with_forms(fields, cls.read(fields))
        fields.finish()
        return asked

    @staticmethod
    @abstractmethod
    def read(fields: Fields) -> ParsedRequest:
        """Read a request's fields. Raises `ApiError` that names the field."""

    @staticmethod
    def drawn_by(form: Json, sampling: SamplingParams) -> Json:
        """Return a request's form for the response, with the values by which the text is drawn."""
        return form

    def first(self, usage: Usage) -> list[Json]:
        """Return the chunks before any text; none by default."""
        return []

    @abstractmethod
    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        """Return the chunks of a message's next parts, of which there may be none, and of our own object
        unless it is empty."""

    def choice_end(self, end: ChoiceEnd, choice: int) -> list[Json]:
        """Return the chunks at the end of one choice; none by default."""
        return []

    @abstractmethod
    def end(self, end: ChoiceEnd, usage: Usage) -> list[Json]:
        """Return the chunks after all choices, of which `end` is the first one's end."""

    def failed(self, error: ApiError) -> list[Json]:
        """Return the last chunks of a stream that breaks off; the error's body by default."""
        return [self.error(error)]

    @abstractmethod
    def whole(self, choices: Sequence[tuple[Message, ChoiceEnd]], usage: Usage) -> Json:
        """Return the response with the whole texts."""

    @staticmethod
    def error(error: ApiError) -> Json:
        return error.body

    @classmethod
    def asks_nothing(cls, body: Json) -> bool:
        """Tell whether a request asks for no text. `whole` without choices is its response."""
        return False

    @classmethod
    def broken(cls, error: ApiError) -> bytes:
        """Return the bytes of an error that is not part of the stream and has no number."""
        return b"data: %s\n\n" % json_text(cls.error(error)).encode()

    def framed(self, number: int, chunk: Json) -> bytes:
        """Return the bytes of a chunk, the stream's `number`-th, counted from 1."""
        return b"id: %d\ndata: %s\n\n" % (number, json_text(chunk).encode())


def named_frame(number: int, chunk: Json) -> bytes:
    """Return the bytes of a stream's `number`-th chunk, whose type is the event's name."""
    data = json_text(chunk).encode()
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, chunk["type"].encode(), data)
