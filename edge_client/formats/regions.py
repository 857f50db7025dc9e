"""Describes how a model marks reasoning and tool calls in what it writes.

A message is regions between two marks, and the text outside of them. All marks are our own (`families`); a
verifier sends none. A pattern begins with a literal and repeats nothing within a repetition, so that a search
takes time in proportion to the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import regex

CONTENT, REASONING, CALLS = "content", "reasoning_content", "tool_calls"
"""Names of regions."""

LOOKS_AROUND = regex.compile(r"\\[BGKXbmM]|\^|\(\?<[=!]|\(\?\(")


@dataclass(frozen=True)
class Mark:
    """Holds one beginning or end of a region: literal texts, the usual one first, or a pattern."""

    texts: tuple[str, ...] = ()
    pattern: str = ""

    @cached_property
    def compiled(self) -> regex.Pattern[str]:
        longest_first = sorted(self.texts, key=lambda text: (-len(text), text))
        return regex.compile(self.pattern or "|".join(map(regex.escape, longest_first)), regex.DOTALL)

    @cached_property
    def may_grow(self) -> bool:
        """Tell whether a match at the end of the present text may become another with more text."""
        return bool(self.pattern) or any(
            one != other and other.startswith(one) for one in self.texts for other in self.texts
        )

    @cached_property
    def looks_around(self) -> bool:
        """Tell whether the text before a place other than its beginning may decide whether the mark begins
        there."""
        return bool(LOOKS_AROUND.search(self.compiled.pattern.replace("[^", "")))


def mark(*texts: str) -> Mark:
    return Mark(texts)


def pattern(source: str) -> Mark:
    return Mark(pattern=source)


@dataclass(frozen=True, slots=True)
class CallForm:
    """Says how a region's text holds calls: as JSON, or as arguments in tags."""

    name_key: str = ""  # of the name in a call's object; empty: the opening mark has it, as its group `name`
    arguments_key: str = ""  # of the arguments in a call's object; empty: the text is the arguments
    is_list: bool = False  # a list of calls; else one call
    tags: tuple[str, str] | None = None  # patterns of an argument's beginning, with its `key`, and its end
    quotes: tuple[str, str] | None = None  # around strings of JSON whose keys have none

    @property
    def is_streamed(self) -> bool:
        """Tell whether a call can be read while it is written."""
        return self.tags is None and self.quotes is None


@dataclass(frozen=True, slots=True)
class Region:
    """Holds one kind of text between two marks.

    Without `open` the region is the text outside all others, and its `close` are marks without meaning.
    Otherwise, without `close` it reaches to the text's end.
    """

    name: str
    open: Mark | None = None
    close: Mark | None = None
    join: str | None = None  # between the texts of several such regions
    calls: CallForm | None = None


@dataclass(frozen=True, slots=True)
class MessageMarks:
    """Holds all marks of one model's messages."""

    start: Mark  # ends right before the message
    regions: tuple[Region, ...]  # those with an `open`
    outside: Region

    def prefix(self, prompt: str) -> str:
        """Return the end of a prompt that already belongs to the message; empty without a start."""
        starts = self.start.compiled.finditer(prompt, concurrent=True)
        end = max((match.end() for match in starts), default=len(prompt))
        return prompt[end:]
