"""Follows one answer to its end, also over a broken connection to the daemon.

The daemon keeps a named stream for a while (`X-Conversation-Id`), on disk also over a restart of its own. A
client that returns with the number of the last event continues after it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

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
from edge_client.texts.events import NoteAdded, TextAdded, TextEnded, TextEvent, ThoughtAdded, from_json

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
        body: dict[str, Any],
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.text = ""
        self.name = f"forerun-{secrets.token_hex(8)}"
        self._find, self._path, self._body = find, path, body
        self._patience, self._sleep, self._clock = patience, sleep, clock
        self._last_id = ""
        self._until: float | None = None  # end of patience after a loss, unless more text comes

    def events(self) -> Iterator[TextEvent]:
        """Yield events as they arrive. Raises the `ForerunError` that ends the answer; `text` stays."""
        events = self._find().events(self._path, self._body, headers={"X-Conversation-Id": self.name})
        while True:
            try:
                for event in events:
                    self._last_id = event.id or self._last_id
                    if event.data == DONE:
                        self.stop()
                        return
                    for part in read_events(event.json()):
                        if isinstance(part, TextAdded):
                            self.text += part.text
                            self._until = None
                        yield part
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
            self._find().delete(f"/v1/stream?conv_id={self.name}")
        except ForerunError:
            pass

    def _again(self, lost: ForerunError) -> Iterator[ServerEvent]:
        """Return the events that follow the last one. Raises `lost` if no daemon appears in time."""
        if self._until is None:
            self._until = self._clock() + self._patience
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            self._sleep(pause)
            try:
                events = self._find().events(
                    f"/v1/stream?conv_id={self.name}", headers={"Last-Event-ID": self._last_id}
                )
                return chain((next(events),), events)
            except UserError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
                words = "the daemon was restarted and has lost this answer; ask again"
                raise UnavailableError(f"{words} (with api.resume = durable it keeps answers)") from error
            except (UnavailableError, CapacityError, StopIteration) as error:
                if self._clock() >= self._until:
                    raise lost from error
        raise AssertionError("pauses do not end")


class ToldError(UnavailableError):
    """Raised when the daemon reports that no verifier can be reached."""


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
