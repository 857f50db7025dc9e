"""How a text is told: OpenAI's chat completion and its older text completion, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from common.messages import FinishReason
from edge_client.text import Words, Written

FINISHES = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "stop"}
"""OpenAI's words."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands in every object of one response."""

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str  # what the text depends on beside the request: the target


class Shape(Protocol):
    """One endpoint's objects."""

    prefix: str  # of ids

    def first(self, heading: Heading) -> list[Json]:
        """Chunks before any text."""
        ...

    def chunk(
        self, heading: Heading, written: Sequence[Written], words: Words | None, finish: str | None
    ) -> Json:
        """Some text, or the end. With `words`, log-probabilities are told."""
        ...

    def whole(self, heading: Heading, written: Sequence[Written], words: Words | None, finish: str) -> Json:
        """The whole text at once."""
        ...


class ChatShape:
    """`/v1/chat/completions`."""

    prefix = "chatcmpl-"

    def first(self, heading: Heading) -> list[Json]:
        return [_object(heading, "chat.completion.chunk", {"delta": {"role": "assistant", "content": ""}})]

    def chunk(
        self, heading: Heading, written: Sequence[Written], words: Words | None, finish: str | None
    ) -> Json:
        delta = {"content": _text(written)} if written else {}
        choice = {"delta": delta, "logprobs": self._logprobs(written, words), "finish_reason": finish}
        return _object(heading, "chat.completion.chunk", choice)

    def whole(self, heading: Heading, written: Sequence[Written], words: Words | None, finish: str) -> Json:
        message = {"role": "assistant", "content": _text(written), "refusal": None}
        choice = {"message": message, "logprobs": self._logprobs(written, words), "finish_reason": finish}
        return _object(heading, "chat.completion", choice)

    def _logprobs(self, written: Sequence[Written], words: Words | None) -> Json | None:
        if words is None or not written:
            return None
        entries = list[Json]()
        for each in written:
            if each.token is not None and each.logprobs is not None:
                top = [_entry(words, token, logprob) for token, logprob in each.logprobs.top]
                entries.append({**_entry(words, each.token, each.logprobs.logprob), "top_logprobs": top})
        return {"content": entries, "refusal": None}


class TextShape:
    """`/v1/completions`. One for each response: offsets count on from chunk to chunk."""

    prefix = "cmpl-"

    def __init__(self) -> None:
        self._offset = 0

    def first(self, heading: Heading) -> list[Json]:
        return []

    def chunk(
        self, heading: Heading, written: Sequence[Written], words: Words | None, finish: str | None
    ) -> Json:
        choice = {"text": _text(written), "logprobs": self._logprobs(written, words), "finish_reason": finish}
        return _object(heading, "text_completion", choice)

    def whole(self, heading: Heading, written: Sequence[Written], words: Words | None, finish: str) -> Json:
        return self.chunk(heading, written, words, finish)

    def _logprobs(self, written: Sequence[Written], words: Words | None) -> Json | None:
        if words is None or not written:
            return None
        told: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for each in written:
            if each.token is not None and each.logprobs is not None:
                told["tokens"].append(_spelled(words, each.token))
                told["token_logprobs"].append(each.logprobs.logprob)
                told["top_logprobs"].append({_spelled(words, t): p for t, p in each.logprobs.top})
                told["text_offset"].append(self._offset)
            self._offset += len(each.text)
        return told


def _object(heading: Heading, kind: str, choice: Json) -> Json:
    return {
        "id": heading.id,
        "object": kind,
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": heading.fingerprint,
        "choices": [{"index": 0, "logprobs": None, "finish_reason": None, **choice}],
    }


def _text(written: Sequence[Written]) -> str:
    return "".join(each.text for each in written)


def _spelled(words: Words, token: int) -> str:
    return words.piece(token).decode("utf-8", "replace")


def _entry(words: Words, token: int, logprob: float) -> Json:
    piece = words.piece(token)
    return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}
