"""From tokens to text, as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from common.messages import TokenLogprobs


class Words(Protocol):
    """What is known of a model's tokens without its weights (`LlamaModel` is one)."""

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


class TextDecoder:
    """Turns tokens into text as they come; bytes of an unfinished character wait for the rest."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(self._words.piece(token) for token in tokens))

    def fork(self) -> TextDecoder:
        """A decoder of what may follow, which leaves this one as it is."""
        other = TextDecoder(self._words)
        other._decoder.setstate(self._decoder.getstate())
        return other

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class Origin(Enum):
    """Who wrote a token."""

    DRAFTED = "drafted"  # proposed on the device in time, and the target's own
    SERVER = "server"  # written by the target where no draft was right
    DEVICE = "device"  # the draft model's alone, while no verifier was there: no target has seen it


@dataclass(frozen=True, slots=True)
class Written:
    """One token of a text, and what it added to it: possibly nothing, if its character is not whole yet."""

    token: int | None  # None: only the bytes of a character that never became whole
    text: str
    origin: Origin
    logprobs: TokenLogprobs | None = None


class Speller:
    """Spells a text token by token and ends it before a stop string.

    What might be the beginning of a stop string is held back until it is known. End tokens (`ends`) add no
    text. After `stopped_by` is set nothing more may be fed.
    """

    def __init__(self, words: Words, ends: Collection[int] = (), stops: Sequence[str] = ()) -> None:
        self.stopped_by: str | None = None
        self._decoder = TextDecoder(words)
        self._ends = frozenset(ends)
        self._stops = tuple(stops)
        self._held: list[Written] = []

    def feed(self, token: int, origin: Origin, logprobs: TokenLogprobs | None = None) -> list[Written]:
        """What can be shown now, this token included if nothing speaks against it."""
        text = "" if token in self._ends else self._decoder.feed((token,))
        self._held.append(Written(token, text, origin, logprobs))
        if not self._stops:
            return self._release(len(self._held))
        held = "".join(each.text for each in self._held)
        found = [(at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            return self._cut(at)
        return self._release(self._num_safe(len(held) - _longest_beginning(held, self._stops)))

    def finish(self) -> list[Written]:
        """The text ends here: what was held back, and the bytes of a character that never became whole."""
        rest = self._decoder.finish()
        if rest and self._held:
            self._held[-1] = replace(self._held[-1], text=self._held[-1].text + rest)
        elif rest:
            return [Written(None, rest, Origin.SERVER)]
        return self._release(len(self._held))

    def _release(self, count: int) -> list[Written]:
        released = self._held[:count]
        del self._held[:count]
        return released

    def _num_safe(self, length: int) -> int:
        """How many of the held tokens end within the first `length` characters."""
        end = 0
        for count, each in enumerate(self._held):
            end += len(each.text)
            if end > length:
                return count
        return len(self._held)

    def _cut(self, at: int) -> list[Written]:
        """The held tokens up to character `at`; the one in which it lies is shortened."""
        kept, start = list[Written](), 0
        for each in self._held:
            if start >= at:
                break
            kept.append(replace(each, text=each.text[: at - start]))
            start += len(each.text)
        self._held.clear()
        return kept


def _longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of `text` that may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
