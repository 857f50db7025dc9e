"""Turns tokens into text as they arrive: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Protocol

from common.messages import TokenLogprobs


class Words(Protocol):
    """Reads a model's tokens without its weights (`LlamaModel` is one)."""

    @property
    def num_vocab(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def begin_ids(self) -> tuple[int, ...]: ...

    @property
    def control_texts(self) -> tuple[str, ...]: ...

    def tokenize(self, text: str, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...


def text_of(spans: Iterable[TextSpan]) -> str:
    """Return the text of spans."""
    return "".join(span.text for span in spans)


def spelled(words: Words, tokens: Iterable[int]) -> str:
    """Return the text of tokens, with a replacement character for bytes that are no character."""
    return b"".join(map(words.piece, tokens)).decode("utf-8", "replace")


class TextDecoder:
    """Turns tokens into text as they come; bytes of an unfinished character wait for the rest."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(self._words.piece(token) for token in tokens))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class TokenOrigin(Enum):
    """Names the writer of a token."""

    DRAFTED = "drafted"  # proposed by the device in time and chosen by the target
    SERVER = "server"  # chosen by the target without a right draft
    DEVICE = "device"  # by the draft model alone, without a verifier; unconfirmed


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Holds some text by one writer, added by one token or several. It may be empty while a character is
    incomplete."""

    text: str
    origin: TokenOrigin | None  # None: unknown
    num_tokens: int = 1
    token: int | None = None  # the id, if one token has added this text
    logprobs: TokenLogprobs | None = None


class Detokenizer:
    """Spells a text token by token and ends it before a stop string.

    A possible beginning of a stop string is held back until the next tokens decide. End tokens (`ends`) add
    no text. Once `stopped_by` is set, the caller must feed no more.
    """

    def __init__(self, words: Words, ends: Collection[int] = (), stops: Sequence[str] = ()) -> None:
        self.stopped_by: str | None = None
        self._decoder = TextDecoder(words)
        self._ends = frozenset(ends)
        self._stops = tuple(stops)
        self._held: list[TextSpan] = []

    def feed(self, token: int, origin: TokenOrigin, logprobs: TokenLogprobs | None = None) -> list[TextSpan]:
        """Add a token and return the spans that can be shown now."""
        text = "" if token in self._ends else self._decoder.feed((token,))
        self._held.append(TextSpan(text, origin, 1, token, logprobs))
        if not self._stops:
            return self._release(len(self._held))
        held = "".join(each.text for each in self._held)
        found = [(at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            return self._cut(at)
        return self._release(self._num_safe(len(held) - _longest_beginning(held, self._stops)))

    def finish(self) -> list[TextSpan]:
        """End the text. Return the held spans and the bytes of an incomplete character."""
        rest = self._decoder.finish()
        if rest and self._held:
            self._held[-1] = replace(self._held[-1], text=self._held[-1].text + rest)
        elif rest:
            return [TextSpan(rest, TokenOrigin.SERVER)]
        return self._release(len(self._held))

    def _release(self, count: int) -> list[TextSpan]:
        released = self._held[:count]
        del self._held[:count]
        return released

    def _num_safe(self, length: int) -> int:
        """Return how many of the held tokens end within the first `length` characters."""
        return sum(end <= length for end in accumulate(len(each.text) for each in self._held))

    def _cut(self, at: int) -> list[TextSpan]:
        """Return the held tokens up to character `at`, shortening the one that holds it."""
        kept, start = list[TextSpan](), 0
        for each in self._held:
            if start >= at:
                break
            kept.append(replace(each, text=each.text[: at - start]))
            start += len(each.text)
        self._held.clear()
        return kept


def _longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Return how many last characters of `text` may begin a stop string."""
    beginnings = (stop[:length] for stop in stops for length in range(1, min(len(stop), len(text) + 1)))
    return max((len(each) for each in beginnings if text.endswith(each)), default=0)
