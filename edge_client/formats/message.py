"""The parts of an assistant's message: content, reasoning and tool calls, in the order of writing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_client.formats.detokenizer import TextSpan, text_of
from edge_client.formats.json_text import read_json

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SpansAdded:
    """Adds text. `spans` may be empty texts while a character is incomplete."""

    spans: tuple[TextSpan, ...]

    @property
    def text(self) -> str:
        return text_of(self.spans)


class ContentAdded(SpansAdded):
    """Adds text of the answer itself."""

    __slots__ = ()


class ReasoningAdded(SpansAdded):
    """Adds text that the model thinks before its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Begins the tool call with this index, counted from 0 in one message."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsAdded:
    """Adds a piece of a tool call's arguments. All pieces of one call together are JSON text."""

    index: int
    text: str


MessagePart = ContentAdded | ReasoningAdded | CallBegun | ArgumentsAdded


@dataclass(slots=True)
class ToolCall:
    """Holds one call of a whole message."""

    name: str
    arguments: str  # JSON text, as the model wrote it


def arguments_object(text: str) -> Json | None:
    """Return the arguments of a call as an object; None if the text is no JSON object. No text is none."""
    try:
        value = read_json(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(slots=True)
class Message:
    """Collects a message from its parts."""

    content: list[TextSpan] = field(default_factory=list)
    reasoning: list[TextSpan] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, parts: Iterable[MessagePart]) -> None:
        for part in parts:
            match part:
                case ContentAdded():
                    self.content += part.spans
                case ReasoningAdded():
                    self.reasoning += part.spans
                case CallBegun():
                    self.calls.append(ToolCall(part.name, ""))
                case ArgumentsAdded():
                    self.calls[part.index].arguments += part.text

    @property
    def text(self) -> str:
        """Return the content's text."""
        return text_of(self.content)

    @property
    def thought(self) -> str:
        """Return the reasoning's text."""
        return text_of(self.reasoning)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Says how a text is to be read (`families.marks_of`). All values are JSON, so that a text on disk can be
    read on.

    `prefix` is the end of the prompt that already belongs to the message, such as an open `<think>`.
    `tools` are the tools that the model may call, as the chat template gets them; without any, the text of a
    call is content.
    """

    family: str = ""  # of the model; empty: the whole text is content
    thinks: bool = False  # the marks of reasoning count
    has_own_calls: bool = True  # calls in the family's own notation; else in that of Hermes
    prefix: str = ""
    tools: Sequence[Json] = ()
