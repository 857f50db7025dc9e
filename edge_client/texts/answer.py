"""Writes one text of a client by one session or several in a row.

Most texts are one session. A further one follows if the draft model wrote alone for a while
(`Fallback.DRAFT`) and the target, after its return, would have written another text. The client keeps the
text it has read, marked as the device's, and the target continues from there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from itertools import islice
from typing import assert_never

from common.messages import FinishReason, TokenLogprobs
from edge_client.core.effects import (
    ChangeMode,
    Emit,
    Fallback,
    Preview,
    PreviewEnds,
    SessionStats,
    Withdraw,
)
from edge_client.formats.detokenizer import Detokenizer, TextDecoder, TextSpan, TokenOrigin, Words
from edge_client.texts.events import AnswerEvent, Json, TextAdded
from edge_client.texts.figures import SessionRun, TextAccount, TextFigures, add_up
from edge_client.texts.resume import WrittenText
from edge_client.texts.text_request import TextRequest, Writer

UNFINISHED = 8
"""Tokens of an unfinished character at most: four bytes, and some tokens without text."""

PIECE = 100
"""Tokens of a resumed text that are read at once. They take about 4 ms, during which all other texts wait."""


class TextAnswer:
    """Writes one text. Iterate over `events()` once; then `finish` says why it ended.

    Args: request; words, the target's tokens; ends, the end tokens; begin, which makes the next session
    after the tokens written so far; account, already begun.
    The iteration raises the `ForerunError` that ended the text. The text so far stays valid.
    """

    def __init__(
        self,
        request: TextRequest,
        words: Words,
        ends: frozenset[int],
        begin: Callable[[Sequence[int]], SessionRun],
        account: TextAccount,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.account = account
        self.finish: FinishReason | None = None
        self.differences: list[Json] = []
        self._words = words
        self.ends = ends  # the tokens that end it
        self._begin = begin
        self._clock = clock
        self._detokenizer = Detokenizer(words, ends, request.stops)
        self.text = WrittenText()
        self._shown_preview: list[int] = []  # preview after the text, for a client that revises
        self._differs = False  # the session's text differs from the client's
        self.run: SessionRun | None = None  # the present session
        self._done: list[SessionStats] = []  # of the sessions before the present one

    def begun(self) -> Iterator[list[TextSpan]]:
        """Write what an earlier run of the daemon has shown, in short pieces. Comes before `events`."""
        begun = self.request.begun
        logprobs = begun.logprobs or (None,) * len(begun.tokens)
        shown = zip(begun.tokens, begun.origins, logprobs, strict=True)
        while piece := list(islice(shown, PIECE)):
            yield [span for each in piece for span in self._spell(*each)]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the tokens of the text so far."""
        return tuple(self.text.tokens)

    @property
    def preview(self) -> tuple[int, ...]:
        """Return the preview's tokens that a revising client sees after the text now."""
        return tuple(self._shown_preview)

    @property
    def stopped_by(self) -> str | None:
        """Return the stop string that ended the text; None for another end."""
        return self._detokenizer.stopped_by

    @property
    def figures(self) -> TextFigures:
        stats = add_up([*self._done, *([self.run.stats] if self.run is not None else [])])
        return self.account.figures(stats, self.run, self._clock())

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        while not self._is_over():
            if self.run is not None:
                self._done.append(self.run.stats)
            self._differs, self.run = False, self._begin(self.text.tokens)
            run = self.run
            try:
                async with contextlib.aclosing(run.shown()) as shown:
                    async for item in shown:
                        added = self._emit(item) if isinstance(item, Emit) else self._told(item)
                        for event in added:
                            yield event
                        if self._is_over() or self._differs:
                            break
            finally:
                self.account.left(run)
            if not self._is_over() and not self._differs:
                self.finish = run.reason or FinishReason.CANCELLED
        if self.stopped_by is None and (rest := self._detokenizer.finish()):
            yield TextAdded(tuple(rest), ends=True)

    def _is_over(self) -> bool:
        return self.finish is not None

    def _told(self, item: Preview | PreviewEnds | Withdraw | ChangeMode) -> Iterator[AnswerEvent]:
        """Show what the user sees beside the target's tokens."""
        match item:
            case Preview():
                yield from self._preview(item.tokens)
            case PreviewEnds():
                pass  # the text shows the reason: an end token, or its maximal length
            case Withdraw():
                yield from self._withdraw(len(item.tokens))
            case ChangeMode():
                self.account.mode, self.account.why = item.standing.mode.value, item.standing.why
                yield {"mode": self.account.mode, "why": self.account.why}
            case _:
                assert_never(item)

    def _emit(self, emit: Emit) -> Iterator[AnswerEvent]:
        """Add the target's tokens, of which the device may have written some before."""
        place = emit.start - len(self.request.prompt)
        agreed = self.text.num_agreed(place, emit.tokens)
        if agreed < min(len(emit.tokens), len(self.text.tokens) - place):
            yield self._differing(place + agreed, emit.tokens[agreed:])
            return
        del self._shown_preview[: len(emit.tokens)]
        written = list[TextSpan]()
        for at in range(agreed, len(emit.tokens)):
            origin = TokenOrigin.SERVER if emit.server_made >> at & 1 else TokenOrigin.DRAFTED
            written += self._write(emit.tokens[at], origin, emit.logprobs[at] if emit.logprobs else None)
        if written:
            yield TextAdded(tuple(written))

    def _preview(self, tokens: Sequence[int]) -> Iterator[AnswerEvent]:
        """Add the draft's tokens: as a preview for a revising client, else as text, if allowed."""
        if self.request.revises and self.request.writer is not Writer.DRAFT:
            yield self._extend_preview(tokens)
            if self.request.fallback is not Fallback.DRAFT or not self._is_whole(self._shown_preview):
                return
            tokens = tuple(self._shown_preview)
            self._shown_preview.clear()
        if written := [each for token in tokens for each in self._write(token, TokenOrigin.DEVICE)]:
            yield TextAdded(tuple(written))

    def _withdraw(self, count: int) -> Iterator[AnswerEvent]:
        if count <= len(self._shown_preview):  # else text, which stays
            del self._shown_preview[len(self._shown_preview) - count :]
            yield {"retract": len(self.text.tokens) + len(self._shown_preview)}

    def _extend_preview(self, tokens: Sequence[int]) -> Json:
        decoder = TextDecoder(self._words)
        before = (*self.text.tokens[-UNFINISHED:], *self._shown_preview[-UNFINISHED:])
        decoder.feed(before[-UNFINISHED:])
        start = len(self.text.tokens) + len(self._shown_preview)
        self._shown_preview += tokens
        texts = ["" if token in self.ends else decoder.feed((token,)) for token in tokens]
        return {"guess": {"start": start, "texts": texts}}

    def _differing(self, place: int, tokens: Sequence[int]) -> Json:
        """Note that the target differs at `place`. The next session begins after the text."""
        self._differs = True
        device, target = TextDecoder(self._words), TextDecoder(self._words)
        texts = {"device": device.feed(self.text.tokens[place:]), "target": target.feed(tokens)}
        self.differences.append({"place": place, **texts})
        return {"difference": self.differences[-1]}

    def _write(
        self, token: int, origin: TokenOrigin, logprobs: TokenLogprobs | None = None
    ) -> list[TextSpan]:
        """Add a token and return the spans to show; none after the text's end."""
        if self.finish is not None:
            return []
        self.account.wrote(origin, self._clock())
        return self._spell(token, origin, logprobs)

    def _spell(
        self, token: int, origin: TokenOrigin, logprobs: TokenLogprobs | None = None
    ) -> list[TextSpan]:
        self.text.add(token, origin, logprobs)
        written = self._detokenizer.feed(token, origin, logprobs)
        if self.stopped_by is not None or token in self.ends:
            self.finish = FinishReason.STOP
        elif len(self.text.tokens) >= self.request.sampling.max_tokens:
            self.finish = FinishReason.LENGTH
        return written

    def _is_whole(self, preview: Sequence[int]) -> bool:
        """Tell whether the text with this preview has come to its end."""
        length = len(self.text.tokens) + len(preview)
        return bool(preview) and (preview[-1] in self.ends or length >= self.request.sampling.max_tokens)
