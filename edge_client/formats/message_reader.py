"""Reads a text as a message by its model's marks, while it is written.

Each part keeps its spans, and loses the white space around regions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import regex

from edge_client.formats.call_reader import JsonCalls, WholeCall
from edge_client.formats.call_values import properties_of
from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.families import marks_of
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    MessageForm,
    MessagePart,
    ReasoningAdded,
)
from edge_client.formats.regions import CALLS, REASONING, Mark, Region

MAX_MARK = 512
"""Characters of a mark, names within it included. A search starts again at its beginning for each further
character."""

MAX_INERT = 4096
"""Characters that a reader knows to begin no mark."""

KEPT = 256
"""Characters that stay before the place of reading, for patterns that look behind."""


class MessageReader:
    """Reads one text in pieces, as a form says.

    The parts so far are a function of the text so far: it is read character by character, so they do not
    depend on where the pieces were cut. Text that is no reasoning and no call is content. So is a call that
    cannot be read, with its marks.
    """

    def __init__(self, form: MessageForm) -> None:
        self.num_reasoning = 0  # tokens so far, those of marks included
        self._sink = _Sink()
        self._queue = _SpanQueue()
        self._text, self._place, self._before = "", 0, 0  # read up to `_place`; characters dropped before
        self._tools = properties_of(form.tools)
        marks = marks_of(form) if form.family else None
        self._outside = marks.outside if marks is not None else None  # None: the whole text is content
        self._regions = tuple(  # whose marks count: without tools the text of a call is content
            each for each in (marks.regions if marks is not None else ()) if form.tools or each.name != CALLS
        )
        self._region: Region | None = None  # None: outside
        self._calls: JsonCalls | WholeCall | None = None
        self._raw = list[_Piece]()  # the text of the calls' region, until one is certain
        self._num_calls = 0
        self._is_plain = True  # no region so far
        self._watches = dict[str, _Watch]()  # by the present region's name; empty outside
        self._barred = -1  # place where an empty mark was found before
        self._is_cut = False  # the text has ended in the middle
        self._content = _Trimmed(self._sink, ContentAdded)
        self._reasoning = _Trimmed(self._sink, ReasoningAdded)
        for region in (*self._regions, self._outside):
            if region is not None and region.name != CALLS:
                self._trimmed(region).join = region.join
        if self._outside is not None and form.prefix:
            self._read(_Source(TextSpan(form.prefix, None, 0), is_hidden=True))

    def feed(self, spans: Sequence[TextSpan]) -> list[MessagePart]:
        """Add text and return the parts that are certain now."""
        for span in spans:
            self._read(_Source(span))
        return self._sink.drain()

    def finish(self, is_cut: bool = False) -> list[MessagePart]:
        """End the text and return the rest. What cannot be read as a call is content. If the text is cut off
        (`is_cut`), the beginning of a mark or of a call at its end is left out."""
        self._is_cut = is_cut
        if self._outside is not None:
            while self._step(at_end=True):
                pass
            self._end_calls()
        self._show(self._rest())
        self._reasoning.finish(is_verbatim=False)
        self._content.finish(self._is_plain)
        return self._sink.drain()

    # Text -------------------------------------------------------------------------------------------------

    def _read(self, source: _Source) -> None:
        if self._outside is None:
            self._sink.show(ContentAdded, [(source, source.span.text)])
            return
        if not source.span.text:
            self._queue.push(source, "")
        for char in source.span.text:
            self._queue.push(source, char)
            self._text += char
            while self._step(at_end=False):
                pass
            if self._place > 4 * KEPT:
                cut = self._place - KEPT
                self._text, self._place, self._before = self._text[cut:], KEPT, self._before + cut

    def _step(self, at_end: bool) -> bool:
        """Read on by one mark, or to the end of what is certain. Return whether there may be more."""
        if isinstance(self._calls, JsonCalls) and not self._calls.is_whole:
            return self._read_json(self._calls)
        mark, end = self._find(at_end)
        if isinstance(self._calls, JsonCalls):  # after the value only its mark may stand
            until = mark[1].start() if mark is not None else end
            if self._text[self._place : until].strip():
                self._leave()
                return True
        if mark is None:
            self._show(self._take(end))
            return False
        region, match = mark
        self._show(self._take(match.start()))
        if region is not self._region and region.open is not None:
            self._open(region, match)
        elif region is self._region:
            self._close(region, self._take(match.end()))
        else:  # a mark outside, without meaning
            self._take(match.end())
            self._content.end_region()
        return True

    def _find(self, at_end: bool) -> tuple[tuple[Region, regex.Match[str]] | None, int]:
        """Return the first mark that is certain, with its region, and where the certain text ends.

        Of marks at one place the longest counts, and a beginning before an end.
        """
        best: tuple[tuple[int, int, bool, str], Region, regex.Match[str]] | None = None
        end, watch = len(self._text), self._watch()
        if not at_end and end - self._place == 1 and self._text[self._place] in watch.inert:
            return None, end
        for region, mark, is_open in watch.marks:
            match = mark.compiled.search(self._text, self._place, partial=not at_end or self._is_cut)
            if match is None or self._is_void(match, region, is_open):
                continue
            if match.partial or (not at_end and self._may_change(match, mark)):
                is_too_long = len(self._text) - match.start() > MAX_MARK
                end = min(end, match.start() + is_too_long)
                continue
            key = (match.start(), match.start() - match.end(), not is_open, region.name)
            if best is None or key < best[0]:
                best = key, region, match
        if best is None and end == len(self._text) == self._place + 1 > 1:  # from there on no \A matches
            watch.learn(self._text[self._place])
        if best is None or best[2].start() >= end:
            return None, end
        return best[1:], end

    def _watch(self) -> _Watch:
        """Return the marks that count now."""
        assert self._outside is not None, "asked for before"
        name = self._region.name if self._region is not None else ""
        if name in self._watches:
            return self._watches[name]
        if self._region is not None:
            listed = [(self._region, self._region.close, False)]
        else:
            listed = [(each, each.open, True) for each in self._regions]
            listed.append((self._outside, self._outside.close, False))
        watch = _Watch([(region, mark, is_open) for region, mark, is_open in listed if mark is not None])
        return self._watches.setdefault(name, watch)

    def _may_change(self, match: regex.Match[str], mark: Mark) -> bool:
        return match.end() == len(self._text) and (mark.may_grow or match.start() == match.end())

    def _is_void(self, match: regex.Match[str], region: Region, is_open: bool) -> bool:
        """Tell whether an empty mark changes nothing, or was found here before."""
        if match.partial or match.start() != match.end():
            return False
        return (not is_open and region is not self._region) or (
            is_open and self._before + match.start() == self._barred
        )

    def _take(self, until: int) -> list[_Piece]:
        pieces = self._queue.take(until - self._place)
        self._place = until
        return pieces

    def _show(self, pieces: list[_Piece]) -> None:
        """Add text to the present region."""
        if self._calls is not None:
            self._raw += pieces
            if isinstance(self._calls, WholeCall):
                self._calls.body += (text for _, text in pieces)
        elif self._region is not None and self._region.name == REASONING:
            self._count(pieces)
            self._reasoning.add(pieces, is_verbatim=False)
        else:
            self._content.add(pieces, self._is_plain)

    def _rest(self) -> list[_Piece]:
        """Return the text that is left, without the beginning of a mark that the text's end has cut off."""
        return [each for each in self._queue.rest() if not self._is_cut or not each[1]]

    def _trimmed(self, region: Region) -> _Trimmed:
        return self._reasoning if region.name == REASONING else self._content

    def _count(self, pieces: Sequence[_Piece]) -> None:
        for source, _ in pieces:
            if not source.is_thought:
                source.is_thought = True
                self.num_reasoning += source.span.num_tokens

    # Regions ----------------------------------------------------------------------------------------------

    def _open(self, region: Region, match: regex.Match[str]) -> None:
        if match.start() == match.end():
            self._barred = self._before + match.start()
        text = match.group()
        self._show(self._take(match.start() + len(text) - len(text.lstrip())))
        mark = self._take(match.end())
        self._region = region
        if region.calls is not None:
            captures = {name: each for name, each in match.groupdict().items() if each is not None}
            self._raw = mark
            self._calls = (
                JsonCalls(region.calls, captures, self._tools, self._num_calls)
                if region.calls.is_streamed
                else WholeCall(region.calls, captures, self._tools)
            )
            return
        self._is_plain = False
        self._content.end_region()
        if region.name == REASONING:
            self._count(mark)

    def _close(self, region: Region, mark: list[_Piece]) -> None:
        if isinstance(self._calls, WholeCall):
            self._raw += mark
            self._read_call(self._calls)
        else:
            if region.name == REASONING:
                self._count(mark)
            self._trimmed(region).end_region()
        self._leave()

    def _leave(self) -> None:
        self._region, self._calls, self._raw = None, None, []

    # Calls ------------------------------------------------------------------------------------------------

    def _read_json(self, calls: JsonCalls) -> bool:
        """Read JSON to the present end of the text. Return whether there may be more to read."""
        while self._place < len(self._text):
            if not calls.feed(self._text[self._place]):
                self._spoil(calls)
                return True
            self._raw += self._take(self._place + 1)
            self._pass_on(calls)
            if calls.is_whole:
                if self._region is not None and self._region.close is None:
                    self._leave()
                return True
        return False

    def _pass_on(self, calls: JsonCalls) -> None:
        if parts := calls.release():
            if self._num_calls <= calls.index:
                self._begin_calls(calls.index + 1)
            self._sink.add(parts)
        if calls.is_begun:
            self._raw = []

    def _begin_calls(self, number: int) -> None:
        """End the content before a call that is certain now."""
        self._num_calls, self._is_plain = number, False
        self._content.end_region()

    def _spoil(self, calls: JsonCalls) -> None:
        """Go on outside. What is no call so far is content."""
        calls.stop()
        self._pass_on(calls)
        self._add_raw()
        self._leave()

    def _add_raw(self) -> None:
        """Add what is no call to the content, unless the text's end has cut it off."""
        if not self._is_cut:
            self._content.add(self._raw, self._is_plain)

    def _read_call(self, call: WholeCall, is_cut_off: bool = False) -> None:
        try:
            parts = call.finish(self._num_calls, is_cut_off)
        except ValueError:
            self._add_raw()
            return
        self._begin_calls(self._num_calls + 1)
        self._sink.add(parts)

    def _end_calls(self) -> None:
        """Read a call that the text's end has cut off. A call is not guessed from a half of it."""
        match self._calls:
            case JsonCalls() as calls if not calls.is_whole:
                self._spoil(calls)
            case WholeCall() as call:
                self._show(self._rest())
                self._read_call(call, is_cut_off=True)
                self._leave()


class _Watch:
    """Holds marks that count in one region, and whether each begins another.

    `inert` are characters at which no mark begins, whatever stands before them.
    """

    def __init__(self, marks: Sequence[tuple[Region, Mark, bool]]) -> None:
        self.marks = marks
        self.inert = set[str]()
        self._learns = not any(mark.looks_around for _, mark, _ in marks)

    def learn(self, char: str) -> None:
        """Note that no mark begins at a character."""
        if self._learns and len(self.inert) < MAX_INERT:
            self.inert.add(char)


# Spans ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Source:
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


_Piece = tuple[_Source, str]


class _SpanQueue:
    """Holds the text that is not read yet."""

    def __init__(self) -> None:
        self._pieces = deque[_Piece]()

    def push(self, source: _Source, text: str) -> None:
        """Add text at the end."""
        self._pieces.append((source, text))

    def take(self, count: int) -> list[_Piece]:
        """Return the next `count` characters, with the empty spans before them."""
        pieces = list[_Piece]()
        while count > 0:
            source, text = self._pieces.popleft()
            if len(text) > count:
                self._pieces.appendleft((source, text[count:]))
                text = text[:count]
            count -= len(text)
            pieces.append((source, text))
        return pieces

    def rest(self) -> list[_Piece]:
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces


_TextKind = type[ContentAdded] | type[ReasoningAdded]


@dataclass(slots=True)
class _Shown:
    """Holds adjacent text of one kind."""

    kind: _TextKind
    pieces: list[_Piece] = field(default_factory=list)

    def add(self, source: _Source, text: str) -> None:
        """Add text, which goes to the last piece if that has the same source."""
        if self.pieces and self.pieces[-1][0] is source:
            text = self.pieces.pop()[1] + text
        self.pieces.append((source, text))

    def part(self) -> MessagePart:
        return self.kind(tuple(source.cut(text) for source, text in self.pieces))


class _Sink:
    """Collects a message's parts, and joins neighbours of one kind."""

    def __init__(self) -> None:
        self._added = list[_Shown | CallBegun | ArgumentsAdded]()

    def show(self, kind: _TextKind, pieces: Iterable[_Piece]) -> None:
        for source, text in pieces:
            if source.is_hidden:
                continue
            last = self._added[-1] if self._added else None
            if not isinstance(last, _Shown) or last.kind is not kind:
                self._added.append(last := _Shown(kind))
            last.add(source, text)

    def add(self, parts: Iterable[CallBegun | ArgumentsAdded]) -> None:
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
class _Trimmed:
    """Shows the text of one kind, without the white space around its regions.

    White space between two regions of text is kept, as is all of it in a message that has no other region.
    """

    sink: _Sink
    kind: _TextKind
    join: str | None = None  # between the texts of two regions
    _blank: list[_Piece] = field(default_factory=list)  # white space that may be the region's last
    _gap: list[_Piece] = field(default_factory=list)  # white space at the end of the region before
    _is_open: bool = False  # the region has shown text
    _has_shown: bool = False  # some region has

    def add(self, pieces: Sequence[_Piece], is_verbatim: bool) -> None:
        """Add text. With `is_verbatim` no white space is dropped at the region's beginning."""
        for source, text in pieces:
            core = text.strip()
            if not core:
                self._blank.append((source, text))
                continue
            begin = text.index(core)
            self._blank.append((source, text[:begin]))
            self._show_blank(is_verbatim)
            self.sink.show(self.kind, [(source, core)])
            self._blank = [(source, rest)] if (rest := text[begin + len(core) :]) else []

    def end_region(self) -> None:
        if self._is_open:
            self._gap = self._blank
        self._blank, self._is_open = [], False

    def finish(self, is_verbatim: bool) -> None:
        """End the text."""
        if is_verbatim:
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
            shown = [(_Source(TextSpan(self.join, None, 0)), self.join)]
        else:
            shown = self._gap
        self.sink.show(self.kind, [each for each in shown if each[1] or not each[0].is_shown])
        self._is_open = self._has_shown = True
