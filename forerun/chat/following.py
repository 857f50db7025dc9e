"""Follows one answer to its end over broken connections and restarts of the daemon.

The daemon keeps a named stream for a while (`X-Conversation-Id`). A client that returns with the number of
the last event continues after it. If the stream is gone, the client repeats the request with the same
seed, gets the same text, and skips the part that it has shown.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any
from urllib.parse import quote

from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from edge_client.formats.detokenizer import TextSpan
from edge_client.process.client import LocalClient, ServerEvent
from edge_client.texts.events import (
    ModeChanged,
    NoteAdded,
    TextAdded,
    TextEnded,
    TextEvent,
    TextRestarted,
    ThoughtAdded,
    from_json,
)
from forerun.chat.asking import Json

DONE = "[DONE]"
STOPPING = "daemon_stopping"
"""Code of the error by which a daemon that stops ends an answer (`edge_client.formats.api_error`)."""

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to find the daemon again. The last pause repeats."""

PATIENCE = 60.0
"""Seconds without a daemon until the answer fails. A service manager restarts one in two."""


class Following:
    """Follows one answer. Iterate over `events()` once; `text` is the text so far.

    Args: find, which returns the running daemon or raises `UnavailableError`; path and body, the request;
    patience, seconds; sleep and clock, the system's.
    """

    def __init__(
        self,
        find: Callable[[], LocalClient],
        path: str,
        body: Json,
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.text = ""
        self._thought = ""  # reasoning so far
        self._find, self._path, self._body = find, path, body
        self._patience, self._sleep, self._clock = patience, sleep, clock
        self._name = ""
        self._last_id = ""
        self._overlap: Overlap | None = None
        self._is_over = False
        self._until: float | None = None  # end of patience after a loss, unless more text comes

    def events(self) -> Iterator[TextEvent]:
        """Yield events as they arrive. Raises the `ForerunError` that ends the answer; `text` stays."""
        events = self._ask()
        while True:
            try:
                for event in events:
                    yield from self._take(event)
                    if self._is_over:
                        self.stop()
                        return
                lost: ForerunError = UnavailableError("the daemon ended the answer before it was whole")
            except ToldError:
                raise  # the daemon itself reports the error
            except UnavailableError as error:
                if not self._last_id:
                    raise
                lost = error
            yield NoteAdded("the daemon has gone away; waiting for it")
            events = self._again(lost)
            del lost  # its frames hold the socket of the broken connection
            yield NoteAdded("the daemon is back; the answer goes on")

    def stop(self) -> None:
        """Make the daemon end and forget the answer. Do nothing without a daemon."""
        try:
            if self._name:
                self._find().delete(f"/v1/stream?conv_id={quote(self._name)}")
        except ForerunError:
            pass

    # one connection -----------------------------------------------------------------------------------------

    def _ask(self) -> Iterator[ServerEvent]:
        self._name, self._last_id = f"forerun-{secrets.token_hex(8)}", ""
        return self._find().events(self._path, self._body, headers={"X-Conversation-Id": self._name})

    def _take(self, event: ServerEvent) -> Iterator[TextEvent]:
        self._last_id = event.id or self._last_id
        if event.data == DONE:
            self._is_over = True
            return
        for read in read_events(event.json()):
            for each in self._new(read):
                if isinstance(each, TextAdded):
                    self.text += each.text
                    self._until = None
                elif isinstance(each, ThoughtAdded):
                    self._thought += each.text
                elif isinstance(each, TextRestarted):
                    self.text = ""
                yield each

    def _new(self, event: TextEvent) -> Iterator[TextEvent]:
        """Yield the parts of an event that were not shown before."""
        if self._overlap is None:
            yield event
            return
        yield from self._overlap.take(event)
        if self._overlap.is_over:
            self._overlap = None

    # the next one -------------------------------------------------------------------------------------------

    def _again(self, lost: ForerunError) -> Iterator[ServerEvent]:
        """Return the following events. Raises `lost` if no daemon appears in time."""
        if self._until is None:
            self._until = self._clock() + self._patience
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            self._sleep(pause)
            try:
                return self._kept() or self._asked_again()
            except (UnavailableError, CapacityError) as error:
                if self._clock() >= self._until:
                    raise lost from error
        raise AssertionError("pauses do not end")

    def _kept(self) -> Iterator[ServerEvent] | None:
        """Return the stream's remaining events; None if the daemon has lost or broken it off."""
        try:
            headers = {"Last-Event-ID": self._last_id}
            return _begun(self._find().events(f"/v1/stream?conv_id={quote(self._name)}", headers=headers))
        except UserError as error:
            if error.code is Code.FAILED_PRECONDITION:  # access refused
                raise
        return None

    def _asked_again(self) -> Iterator[ServerEvent]:
        """Ask for the same text from its beginning."""
        last_id = self._last_id
        try:
            events = _begun(self._ask())
            if events is None:
                raise UnavailableError("the daemon ended the answer before it began")
        except ForerunError:
            self._last_id = last_id  # still in the middle of an answer
            raise
        self._overlap = Overlap(self.text, len(self._thought)) if self.text or self._thought else None
        return events


class ToldError(UnavailableError):
    """Raised when the daemon reports that no verifier can be reached."""


@dataclass(slots=True)
class Overlap:
    """Skips the shown part of a repeated answer. If its text differs, all of it is shown."""

    told: str
    thought: int = 0  # characters of reasoning that were shown
    seen: str = ""
    is_over: bool = False

    def take(self, event: TextEvent) -> Iterator[TextEvent]:
        match event:
            case TextAdded():
                yield from self._text(event)
            case ThoughtAdded():
                if new := event.text[self.thought :]:
                    yield ThoughtAdded(new)
                self.thought = max(0, self.thought - len(event.text))
            case TextEnded():
                if not self.is_over and self.seen != self.told:
                    yield from self._anew()
                yield event
            case NoteAdded() | ModeChanged():
                yield event
            case _:
                return  # a preview follows the text, which has not come yet

    def _text(self, event: TextAdded) -> Iterator[TextEvent]:
        self.seen += event.text
        if self.told.startswith(self.seen):
            self.is_over = self.seen == self.told
        elif self.seen.startswith(self.told):
            self.is_over = True
            yield TextAdded(_last(event.spans, len(self.seen) - len(self.told)))
        else:
            yield from self._anew()

    def _anew(self) -> Iterator[TextEvent]:
        self.is_over = True
        yield TextRestarted()
        yield TextAdded((TextSpan(self.seen, None),))


def _last(spans: tuple[TextSpan, ...], length: int) -> tuple[TextSpan, ...]:
    """Return the last `length` characters of `spans`."""
    kept = list[TextSpan]()
    for span in reversed(spans):
        if length <= 0:
            break
        kept.append(replace(span, text=span.text[-length:]))
        length -= len(span.text)
    return tuple(reversed(kept))


def _begun(events: Iterator[ServerEvent]) -> Iterator[ServerEvent] | None:
    """Wait for the first event. Return the same events; None without any."""
    first = next(events, None)
    return None if first is None else chain((first,), events)


def read_events(chunk: Any) -> Iterator[TextEvent]:
    """Yield the events that one chunk of a daemon's stream holds.

    Raises `PeerError` for a chunk of another program or version, and the error in the chunk.
    """
    if not isinstance(chunk, dict):
        raise PeerError(f"the daemon's stream holds {str(chunk)[:80]!r}, which is not a JSON object")
    if "error" in chunk:
        raise _error(chunk["error"])
    try:
        ours = chunk.get("forerun") or {}
        choice = chunk["choices"][0] if chunk.get("choices") else {}
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        if thought := delta.get("reasoning_content"):
            yield ThoughtAdded(str(thought))
        if text and not ours.get("origins"):
            yield TextAdded((TextSpan(text, None),))
        if finish := choice.get("finish_reason"):
            yield TextEnded(str(finish), ours)
        else:
            yield from from_json(ours)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PeerError(
            f"the daemon's stream is of another version ({error!r}); restart the daemon"
        ) from error


ERRORS: dict[str, type[ForerunError]] = {
    STOPPING: UnavailableError,  # another daemon may come
    "verifier_unavailable": ToldError,
    "invalid_request_error": UserError,
    "rate_limit_error": CapacityError,
}
"""Error classes by a stream's error code, else by its type."""


def _error(told: Any) -> ForerunError:
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return PeerError(f"the daemon ended the answer without a reason: {str(told)[:80]}")
    kind = ERRORS.get(str(told.get("code"))) or ERRORS.get(str(told.get("type")), LocalError)
    return kind(told["message"])
