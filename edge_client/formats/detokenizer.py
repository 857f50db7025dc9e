"""Turns tokens into text as they arrive: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
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
        self._stops = [_StopSearch(stop) for stop in stops]
        self._held = deque[TextSpan]()
        self._num_held = 0  # characters

    def feed(self, token: int, origin: TokenOrigin, logprobs: TokenLogprobs | None = None) -> list[TextSpan]:
        """Add a token and return the spans that can be shown now."""
        text = "" if token in self._ends else self._decoder.feed((token,))
        self._held.append(TextSpan(text, origin, 1, token, logprobs))
        before, self._num_held = self._num_held, self._num_held + len(text)
        stops = list[tuple[int, str]]()
        for search in self._stops:
            if (end := search.feed(text)) is not None:
                stops.append((before + end - len(search.stop), search.stop))
        if stops:
            at, self.stopped_by = min(stops)
            return self._cut(at)
        return self._release(self._num_held - max((each.length for each in self._stops), default=0))

    def finish(self) -> list[TextSpan]:
        """End the text. Return the held spans and the bytes of an incomplete character."""
        rest = self._decoder.finish()
        if rest and self._held:
            self._held[-1] = replace(self._held[-1], text=self._held[-1].text + rest)
        elif rest:
            return [TextSpan(rest, TokenOrigin.SERVER)]
        return self._release(self._num_held + len(rest))

    def _release(self, length: int) -> list[TextSpan]:
        """Return the held tokens that end within the first `length` characters."""
        released = list[TextSpan]()
        while self._held and len(self._held[0].text) <= length:
            length -= len(self._held[0].text)
            self._num_held -= len(self._held[0].text)
            released.append(self._held.popleft())
        return released

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


class _StopSearch:
    """Searches one stop string in a growing text. Each character is read once (Knuth, Morris and Pratt 1977).

    `length` is how many last characters of the text may begin the stop string.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._shorter = [0]  # by length: the longest shorter beginning with which that beginning ends
        for char in stop[1:]:
            self._shorter.append(self._longer(self._shorter[-1], char))

    def feed(self, text: str) -> int | None:
        """Add text and return how much of it ends the first stop string; None if there is none."""
        for end, char in enumerate(text, 1):
            self.length = self._longer(self.length, char)
            if self.length == len(self.stop):
                return end
        return None

    def _longer(self, length: int, char: str) -> int:
        """Return the length of the beginning that ends with `char` after one of this length."""
        while length and self.stop[length] != char:
            length = self._shorter[length - 1]
        return length + (self.stop[length] == char)
