"""Keeps the spans of a text while it is cut into a message's parts, and trims white space around regions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.message import ArgumentsAdded, CallBegun, ContentAdded, MessagePart, ReasoningAdded


@dataclass(slots=True)
class Source:
    """Holds one span of the text and whether its token has been shown and counted."""

    span: TextSpan
    is_hidden: bool = False  # of the prompt
    is_shown: bool = False
    is_thought: bool = False

    def cut(self, text: str) -> TextSpan:
        """Return a span with a part of the text. The first part that is shown has the token."""
        if self.is_shown:
            return replace(self.span, text=text, num_tokens=0, token=None, logprobs=None)
        self.is_shown = True
        return replace(self.span, text=text)


Piece = tuple[Source, str]


class SpanQueue:
    """Holds the text that is not read yet."""

    def __init__(self) -> None:
        self._pieces = deque[Piece]()

    def push(self, source: Source, text: str) -> None:
        """Add text at the end."""
        self._pieces.append((source, text))

    def take(self, count: int) -> list[Piece]:
        """Return the next `count` characters, with the empty spans before them."""
        found = list[Piece]()
        while count > 0:
            source, text = self._pieces.popleft()
            if len(text) > count:
                self._pieces.appendleft((source, text[count:]))
                text = text[:count]
            count -= len(text)
            found.append((source, text))
        return found

    def rest(self) -> list[Piece]:
        """Return all that is left."""
        found = list(self._pieces)
        self._pieces.clear()
        return found


TextKind = type[ContentAdded] | type[ReasoningAdded]


@dataclass(slots=True)
class _Shown:
    """Holds adjacent text of one kind."""

    kind: TextKind
    pieces: list[Piece] = field(default_factory=list)

    def add(self, source: Source, text: str) -> None:
        """Add text, which goes to the last piece if that has the same source."""
        if self.pieces and self.pieces[-1][0] is source:
            text = self.pieces.pop()[1] + text
        self.pieces.append((source, text))

    def part(self) -> MessagePart:
        return self.kind(tuple(source.cut(text) for source, text in self.pieces))


class Sink:
    """Collects a message's parts, and joins neighbours of one kind."""

    def __init__(self) -> None:
        self._added = list[_Shown | CallBegun | ArgumentsAdded]()

    def show(self, kind: TextKind, pieces: Iterable[Piece]) -> None:
        """Add text."""
        for source, text in pieces:
            if source.is_hidden:
                continue
            last = self._added[-1] if self._added else None
            if not isinstance(last, _Shown) or last.kind is not kind:
                self._added.append(last := _Shown(kind))
            last.add(source, text)

    def add(self, parts: Iterable[CallBegun | ArgumentsAdded]) -> None:
        """Add parts of calls."""
        for part in parts:
            last = self._added[-1] if self._added else None
            if isinstance(part, ArgumentsAdded) and isinstance(last, ArgumentsAdded):
                self._added[-1] = replace(part, text=last.text + part.text)
            else:
                self._added.append(part)

    def drain(self) -> list[MessagePart]:
        """Return the parts since the last time."""
        added, self._added = self._added, []
        return [each.part() if isinstance(each, _Shown) else each for each in added]


@dataclass(slots=True)
class Trimmed:
    """Shows the text of one kind, without the white space around its regions.

    White space between two regions of text is kept, as is all of it in a message that has no other region.
    """

    sink: Sink
    kind: TextKind
    join: str | None = None  # between the texts of two regions
    strips: bool = True
    _blank: list[Piece] = field(default_factory=list)  # white space that may be the region's last
    _gap: list[Piece] = field(default_factory=list)  # white space at the end of the region before
    _is_open: bool = False  # the region has shown text
    _has_shown: bool = False  # some region has

    def add(self, pieces: Sequence[Piece], is_verbatim: bool) -> None:
        """Add text. With `is_verbatim` no white space is dropped at the region's beginning."""
        for source, text in pieces:
            core = text.strip() if self.strips else text
            if not core:
                self._blank.append((source, text))
                continue
            begin = text.index(core)
            self._blank.append((source, text[:begin]))
            self._show_blank(is_verbatim)
            self.sink.show(self.kind, [(source, core)])
            self._blank = [(source, rest)] if (rest := text[begin + len(core) :]) else []

    def end_region(self) -> None:
        """End the present region."""
        if self._is_open:
            self._gap = self._blank
        self._blank, self._is_open = [], False

    def finish(self, is_verbatim: bool) -> None:
        """End the text."""
        if is_verbatim or not self.strips:
            self.sink.show(self.kind, self._blank)
        elif self._is_open:  # the end token
            self.sink.show(self.kind, [each for each in self._blank if not each[1]])
        self._blank = []

    def _show_blank(self, is_verbatim: bool) -> None:
        if self._is_open or is_verbatim:
            shown = self._blank
        elif not self._has_shown:
            shown = [each for each in self._blank if not each[1]]  # of an incomplete character
        elif self.join is not None:
            shown = [(Source(TextSpan(self.join, None, 0)), self.join)]
        else:
            shown = self._gap
        self.sink.show(self.kind, [each for each in shown if each[1] or not each[0].is_shown])
        self._is_open = self._has_shown = True
