"""One text of a client: sessions one after the other, spelled, stopped, and never lost.

Most texts are one session. Another one follows where the device's own model went on alone for a while
(`Fallback.DRAFT`) and the target, back again, would have written something else: what the client has read
stays, marked, and the target goes on from there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from common.messages import FinishReason, TokenLogprobs
from edge_client.core.config import Fallback
from edge_client.core.effects import ChangeMode, Emit, Preview, PreviewEnds, Withdraw
from edge_client.core.policies.governor import Standing
from edge_client.core.stats import SessionStats
from edge_client.daemon.figures import Account, TextFigures, add_up
from edge_client.daemon.request import Begun, TextRequest, Writer
from edge_client.generation import Shown, Traffic
from edge_client.text import Origin, Speller, TextDecoder, Words, Written


@dataclass(frozen=True, slots=True)
class Piece:
    """More text. It stays."""

    written: tuple[Written, ...]

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.written)


@dataclass(frozen=True, slots=True)
class ModeChange:
    """Who writes is another one now."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Guess:
    """The draft's own guess of what follows, for a client that can take it back. Places count tokens of the
    text; the text's next tokens take the place of the guess's first."""

    start: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retract:
    """The guess from place `start` on is void."""

    start: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the target, back again, would have gone another way than the device did alone."""

    place: int  # of the first token, counted from the text's beginning
    device: str  # what the device wrote from there on
    target: str  # what the target writes there instead, as far as it had come


UNFINISHED = 8
"""Tokens that the beginning of an unfinished character may take: four bytes, and some of no text at all."""

AnswerEvent = Piece | ModeChange | Guess | Retract | Difference
"""What a client learns, in order."""


class Run(Protocol):
    """A session under way, or the draft model alone (`Generation`, `AloneRun`)."""

    traffic: Traffic
    reason: FinishReason | None

    @property
    def stats(self) -> SessionStats: ...

    @property
    def verifier(self) -> str:
        """Of the newest stream, HOST:PORT; empty if there is none."""
        ...

    @property
    def rtts(self) -> Sequence[float]:
        """Round trips measured, the newest last; seconds."""
        ...

    @property
    def streaming_time(self) -> float:
        """What a token would take if the server wrote alone, seconds; 0: not measured."""
        ...

    def shown(self) -> AsyncGenerator[Shown]: ...


class Answer:
    """Writes one text. Iterate over `events()` once; then `finish` says why it ended.

    Args: request; words, the target's tokens; ends, the tokens that end it; begin, which makes the next
    session of a text of which these tokens are written; account, already begun.
    Raises, from the iteration, the `ForerunError` that ended the text; what was written stands.
    """

    def __init__(
        self,
        request: TextRequest,
        words: Words,
        ends: frozenset[int],
        begin: Callable[[Sequence[int]], Run],
        account: Account,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.account = account
        self.finish: FinishReason | None = None
        self.differences: list[Difference] = []
        self._words = words
        self.ends = ends  # the tokens that end it
        self._begin = begin
        self._clock = clock
        self._speller = Speller(words, ends, request.stops)
        self._text: list[int] = []  # of the client's text
        self._origins: list[Origin] = []  # of each of them
        self._guess: list[int] = []  # that a client which revises sees after it
        self._differs = False  # the present session writes another text than the client has
        self._run: Run | None = None
        self._done: list[SessionStats] = []  # of the sessions before the present one
        for token, origin in zip(request.begun.tokens, request.begun.origins, strict=True):
            self._spell(token, origin)

    # What it is -------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the text so far."""
        return tuple(self._text)

    def since(self, count: int) -> Begun:
        """What of the text came after its first `count` tokens."""
        return Begun(tuple(self._text[count:]), tuple(self._origins[count:]))

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._speller.stopped_by

    @property
    def run(self) -> Run | None:
        """The session that writes now."""
        return self._run

    @property
    def figures(self) -> TextFigures:
        """As they stand now."""
        run = self._run
        stats = add_up([*self._done, *([run.stats] if run is not None else [])])
        return self.account.figures(stats, run, self._clock())

    # Writing ----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Write the text."""
        while not self._is_over():
            run = self._next_run()
            try:
                async with contextlib.aclosing(run.shown()) as shown:
                    async for item in shown:
                        for event in self._take(item):
                            yield event
                        if self._is_over() or self._differs:
                            break
            finally:
                self.account.left(run)
            if not self._is_over() and not self._differs:
                self.finish = run.reason or FinishReason.CANCELLED
        if self.stopped_by is None and (rest := self._speller.finish()):
            yield Piece(tuple(rest))

    def _is_over(self) -> bool:
        return self.finish is not None

    def _next_run(self) -> Run:
        if self._run is not None:
            self._done.append(self._run.stats)
        self._differs = False
        self._run = self._begin(self._text)
        return self._run

    def _take(self, item: Shown) -> Iterator[AnswerEvent]:
        match item:
            case Emit():
                yield from self._emit(item)
            case Preview():
                yield from self._preview(item.tokens)
            case PreviewEnds():
                pass  # the text itself tells: an end token, or its greatest length
            case Withdraw():
                yield from self._withdraw(len(item.tokens))
            case ChangeMode():
                self.account.mode, self.account.why = item.standing.mode.value, item.standing.why
                yield ModeChange(item.standing)
            case _:
                assert_never(item)

    def _emit(self, emit: Emit) -> Iterator[AnswerEvent]:
        """The target's own tokens. The client may have some of them already, by the device's hand."""
        place = emit.start - len(self.request.prompt)
        known = self._text[place : place + len(emit.tokens)]
        agreed = next((at for at, token in enumerate(known) if emit.tokens[at] != token), len(known))
        if agreed < len(known):
            yield self._differing(place + agreed, emit.tokens[agreed:])
            return
        del self._guess[: len(emit.tokens)]
        written = list[Written]()
        for at in range(len(known), len(emit.tokens)):
            origin = Origin.SERVER if emit.server_made >> at & 1 else Origin.DRAFTED
            written += self._write(emit.tokens[at], origin, emit.logprobs[at] if emit.logprobs else None)
        yield from _piece(written)

    def _preview(self, tokens: Sequence[int]) -> Iterator[AnswerEvent]:
        """The draft's own: a guess for a client that can revise, else text, which the client has allowed."""
        if self.request.revises and self.request.writer is not Writer.DRAFT:
            yield self._guess_on(tokens)
            if self.request.fallback is not Fallback.DRAFT or not self._is_whole(self._guess):
                return
            tokens = tuple(self._guess)
            self._guess.clear()
        yield from _piece([each for token in tokens for each in self._write(token, Origin.DEVICE)])

    def _withdraw(self, count: int) -> Iterator[AnswerEvent]:
        if count <= len(self._guess):  # else it is text, which stays
            del self._guess[len(self._guess) - count :]
            yield Retract(len(self._text) + len(self._guess))

    def _guess_on(self, tokens: Sequence[int]) -> Guess:
        decoder = TextDecoder(self._words)
        decoder.feed((*self._text[-UNFINISHED:], *self._guess))
        start = len(self._text) + len(self._guess)
        self._guess += tokens
        return Guess(start, tuple("" if token in self.ends else decoder.feed((token,)) for token in tokens))

    def _differing(self, place: int, tokens: Sequence[int]) -> Difference:
        """Remember that the target goes another way at `place`; the next session begins after the text."""
        self._differs = True
        device, target = TextDecoder(self._words), TextDecoder(self._words)
        found = Difference(place, device.feed(self._text[place:]), target.feed(tokens))
        self.differences.append(found)
        return found

    # The text ---------------------------------------------------------------------------------------------

    def _write(self, token: int, origin: Origin, logprobs: TokenLogprobs | None = None) -> list[Written]:
        """What one more token lets the client see; nothing once the text has ended."""
        if self.finish is not None:
            return []
        self.account.wrote(origin, self._clock())
        return self._spell(token, origin, logprobs)

    def _spell(self, token: int, origin: Origin, logprobs: TokenLogprobs | None = None) -> list[Written]:
        self._text.append(token)
        self._origins.append(origin)
        written = self._speller.feed(token, origin, logprobs)
        if self.stopped_by is not None or token in self.ends:
            self.finish = FinishReason.STOP
        elif len(self._text) >= self.request.sampling.max_tokens:
            self.finish = FinishReason.LENGTH
        return written

    def _is_whole(self, guess: Sequence[int]) -> bool:
        """Whether a text that goes on so has come to its end."""
        length = len(self._text) + len(guess)
        return bool(guess) and (guess[-1] in self.ends or length >= self.request.sampling.max_tokens)


def _piece(written: Sequence[Written]) -> Iterator[Piece]:
    if written:
        yield Piece(tuple(written))
