"""Reads the events of one answer as the daemon's API sends them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from common.errors import (
    CapacityError,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from edge_client.formats.detokenizer import TextSpan
from edge_client.process.client import LocalClient
from edge_client.texts.events import TextAdded, TextEnded, TextEvent, ThoughtAdded, from_json

DONE = "[DONE]"


def answer(daemon: LocalClient, path: str, body: dict[str, Any]) -> Generator[TextEvent]:
    """Yield an answer's events as they arrive. Raises the `ForerunError` that ends it. Closing the generator
    hangs up, which ends the text."""
    for event in daemon.events(path, body):
        if event.data == DONE:
            return
        yield from read_events(event.json())
    raise UnavailableError("the daemon ended the answer before it was whole")


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
    "daemon_stopping": UnavailableError,
    "verifier_unavailable": UnavailableError,
    "invalid_request_error": UserError,
    "rate_limit_error": CapacityError,
}
"""Error classes by a stream's error code, else by its type."""


def _error(told: Any) -> ForerunError:
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return PeerError(f"the daemon ended the answer without a reason: {str(told)[:80]}")
    kind = ERRORS.get(str(told.get("code"))) or ERRORS.get(str(told.get("type")), LocalError)
    return kind(told["message"])
