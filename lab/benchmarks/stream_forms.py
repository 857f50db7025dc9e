"""Reads the events of each endpoint's streams: their text, their end and their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

Event = dict[str, Any]


class Form(ABC):
    """Reads one endpoint's events."""

    done: bytes | None = None  # a last frame that is no JSON
    separator = b"\n\n"  # after each frame
    is_numbered = True  # frames are server-sent events with ids; else lines of JSON

    @abstractmethod
    def text(self, event: Event) -> str:
        """Return the text that an event brings."""

    @abstractmethod
    def finishes(self, events: Sequence[Event]) -> list[str]:
        """Return the reasons of all ends."""

    @abstractmethod
    def usages(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """Return all counts of tokens."""

    def error(self, event: Event) -> object:
        """Return the error that an event reports; None if it reports none."""
        return event.get("error")

    def is_end(self, event: Event) -> bool:
        """Tell whether an event is the last one."""
        return False

    def logprobs(self, events: Sequence[Event]) -> tuple[str, ...]:
        """Return the tokens of all log-probabilities."""
        return ()


class OpenAiForm(Form):
    """Reads chat completions and completions."""

    done = b"data: [DONE]"

    def text(self, event: Event) -> str:
        return "".join(
            choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            for choice in event["choices"]
        )

    def finishes(self, events: Sequence[Event]) -> list[str]:
        return [choice["finish_reason"] for choice in _choices(events) if choice["finish_reason"]]

    def usages(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        return [event["usage"] for event in events if event.get("usage")]

    def logprobs(self, events: Sequence[Event]) -> tuple[str, ...]:
        choices = (choice.get("logprobs") or {} for choice in _choices(events))
        return tuple(entry["token"] for each in choices for entry in each.get("content") or ())


def _choices(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [choice for event in events for choice in event["choices"]]


class ResponsesForm(Form):
    """Reads `/v1/responses`. Its last event must repeat the text of all deltas."""

    ends = ("response.completed", "response.incomplete", "response.failed")

    def text(self, event: Event) -> str:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""

    def finishes(self, events: Sequence[Event]) -> list[str]:
        ends = [event["response"] for event in events if event["type"] in self.ends]
        text = "".join(map(self.text, events))
        for end in ends:
            parts = [part for item in end["output"] for part in item.get("content") or ()]
            assert "".join(part["text"] for part in parts if part["type"] == "output_text") == text
        return [str((end.get("incomplete_details") or {}).get("reason") or end["status"]) for end in ends]

    def usages(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        return [event["response"]["usage"] for event in events if event["type"] in self.ends]

    def error(self, event: Event) -> object:
        return event["response"]["error"] if event["type"] == "response.failed" else None

    def is_end(self, event: Event) -> bool:
        return event["type"] in self.ends


class MessagesForm(Form):
    """Reads `/v1/messages`."""

    def text(self, event: Event) -> str:
        return str(event.get("delta", {}).get("text", "")) if event["type"] == "content_block_delta" else ""

    def finishes(self, events: Sequence[Event]) -> list[str]:
        return [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]

    def usages(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        return [_cached_or_not(event["usage"]) for event in events if event["type"] == "message_delta"]

    def is_end(self, event: Event) -> bool:
        return bool(event["type"] == "message_stop")


def _cached_or_not(usage: dict[str, Any]) -> dict[str, Any]:
    """Return Anthropic's counts with all tokens of the prompt together. What is cached differs by run."""
    prompt = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    others = {name: count for name, count in usage.items() if name not in prompt}
    return {**others, "prompt": sum(usage.get(name) or 0 for name in prompt)}


class OllamaForm(Form):
    """Reads `/api/chat` and `/api/generate`."""

    separator, is_numbered = b"\n", False

    def text(self, event: Event) -> str:
        return str(event["message"]["content"] if "message" in event else event["response"])

    def finishes(self, events: Sequence[Event]) -> list[str]:
        return [event["done_reason"] for event in events if event["done"]]

    def usages(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        counts = ("prompt_eval_count", "eval_count")
        return [{name: event[name] for name in counts} for event in events if event["done"]]

    def is_end(self, event: Event) -> bool:
        return bool(event["done"])


FORMS: dict[str, Form] = {
    "/v1/chat/completions": OpenAiForm(),
    "/v1/completions": OpenAiForm(),
    "/v1/responses": ResponsesForm(),
    "/v1/messages": MessagesForm(),
    "/api/chat": OllamaForm(),
    "/api/generate": OllamaForm(),
}
"""Forms by path."""
