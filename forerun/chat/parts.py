"""What comes of an answer: the daemon's chunks (`edge_client.api.telling`), typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import (
    CapacityError,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)

STOPPING = "daemon_stopping"
"""Code of the error by which a daemon that stops ends an answer (`edge_client.api.errors`)."""

DRAFTED, SERVER, DEVICE = "drafted", "server", "device"
"""Who wrote a token: the device and the target agreed, the target, or the draft model alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text by one writer."""

    text: str
    origin: str  # one of the three above; empty: not told
    tokens: int


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer. It stays."""

    runs: tuple[Run, ...]

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


@dataclass(frozen=True, slots=True)
class Mode:
    """Who writes is another one now."""

    mode: str
    why: str


@dataclass(frozen=True, slots=True)
class Note:
    """What a person should know, in words."""

    words: str


@dataclass(frozen=True, slots=True)
class Guess:
    """The draft's own guess; places count tokens of the answer."""

    start: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retract:
    """The guess from this place on is void."""

    start: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the device wrote alone, and the target, back again, would have written something else."""

    device: str
    target: str


@dataclass(frozen=True, slots=True)
class Anew:
    """All text so far is void: it comes again, and is another one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is whole. `figures` are the daemon's (`TextFigures`)."""

    finish: str
    figures: Mapping[str, Any]


Part = Text | Mode | Note | Guess | Retract | Difference | Anew | Ended


class StoppingError(UnavailableError):
    """The daemon is about to go away; another may come."""


def read_parts(chunk: Any) -> Iterator[Part]:
    """Of one event. Raises `PeerError` if it is none of a daemon, and the error that it tells."""
    if not isinstance(chunk, dict):
        raise PeerError(f"the daemon's stream holds {str(chunk)[:80]!r}, which is no object")
    if "error" in chunk:
        raise _error(chunk["error"])
    try:
        yield from _read(chunk)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PeerError(
            f"the daemon's stream is of another version ({error!r}); restart the daemon"
        ) from error


def _read(chunk: dict[str, Any]) -> Iterator[Part]:
    ours = chunk.get("forerun") or {}
    choice = chunk["choices"][0] if chunk.get("choices") else {}
    text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    if origins := ours.get("origins"):
        yield Text(tuple(Run(str(each[0]), str(each[1]), int(each[2])) for each in origins))
    elif text:
        yield Text((Run(text, "", 1),))
    if finish := choice.get("finish_reason"):
        yield Ended(str(finish), ours)
        return
    yield from _said(ours)


def _said(ours: dict[str, Any]) -> Iterator[Part]:
    for words in ours.get("notes", ()):
        yield Note(str(words))
    if "why" in ours:
        yield Mode(str(ours["mode"]), str(ours["why"]))
    if guess := ours.get("guess"):
        yield Guess(int(guess["start"]), tuple(map(str, guess["texts"])))
    if "retract" in ours:
        yield Retract(int(ours["retract"]))
    if difference := ours.get("difference"):
        yield Difference(str(difference["device"]), str(difference["target"]))


ERRORS: dict[str, type[ForerunError]] = {
    "invalid_request_error": UserError,
    "rate_limit_error": CapacityError,
}
"""By the type that a stream tells."""


def _error(told: Any) -> ForerunError:
    """What ended an answer, as the daemon words it."""
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return PeerError(f"the daemon ended the answer without a reason: {str(told)[:80]}")
    if told.get("code") == STOPPING:
        return StoppingError(told["message"])
    if told.get("code") == "verifier_unavailable":
        return UnavailableError(told["message"])
    return ERRORS.get(str(told.get("type")), LocalError)(told["message"])
