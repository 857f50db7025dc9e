"""Events of a text in order, and the API's own fields as its clients read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edge_client.formats.detokenizer import TextSpan, TokenOrigin, text_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextAdded:
    """Reports more text, which is final."""

    spans: tuple[TextSpan, ...]
    ends: bool = False  # it was held back until the text's end, because a stop string might have begun

    @property
    def text(self) -> str:
        return text_of(self.spans)


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """Reports a change of the writer."""

    mode: str  # of `governor.Mode`
    why: str


@dataclass(frozen=True, slots=True)
class PreviewAdded:
    """Reports the draft's guess of the next text, for a client that can take text back. Places count tokens
    of the text. The text's next tokens replace the preview's first."""

    start: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreviewWithdrawn:
    """Withdraws the preview from place `start` on."""

    start: int


@dataclass(frozen=True, slots=True)
class DifferenceFound:
    """Reports that the target, after its return, differs from the device's text."""

    place: int  # of the first token, counted from the text's beginning
    device: str  # the device's text from there on
    target: str  # the target's text from there on, so far


@dataclass(frozen=True, slots=True)
class ThoughtAdded:
    """Reports more of the model's reasoning, which is no part of its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """Holds a sentence for the user."""

    words: str


@dataclass(frozen=True, slots=True)
class TextEnded:
    """Reports the end of a whole text."""

    finish: str  # OpenAI's reason
    figures: Mapping[str, Any]  # of `TextFigures`


AnswerEvent = TextAdded | Json
"""The text service's events of one text. What is no text is in the API's own fields."""

TextEvent = (
    TextAdded
    | ModeChanged
    | PreviewAdded
    | PreviewWithdrawn
    | DifferenceFound
    | ThoughtAdded
    | NoteAdded
    | TextEnded
)
"""A client's events of one text."""


def from_json(ours: Json) -> Iterator[TextEvent]:
    """Yield the events of the API's own fields. Raises `ValueError`, `KeyError` or `TypeError` for another
    version's fields."""
    if origins := ours.get("origins"):
        yield TextAdded(
            tuple(TextSpan(str(text), TokenOrigin(who), int(count)) for text, who, count in origins)
        )
    for words in ours.get("notes", ()):
        yield NoteAdded(str(words))
    if "why" in ours:
        yield ModeChanged(str(ours["mode"]), str(ours["why"]))
    if guess := ours.get("guess"):
        yield PreviewAdded(int(guess["start"]), tuple(map(str, guess["texts"])))
    if "retract" in ours:
        yield PreviewWithdrawn(int(ours["retract"]))
    if difference := ours.get("difference"):
        yield DifferenceFound(int(difference["place"]), str(difference["device"]), str(difference["target"]))


def origins_of(spans: Iterable[TextSpan]) -> list[list[Any]]:
    """Return runs of text by one writer: [text, origin, number of tokens]."""
    joined = list[list[Any]]()
    for span in spans:
        origin = span.origin.value if span.origin is not None else ""
        if joined and joined[-1][1] == origin:
            joined[-1][0] += span.text
            joined[-1][2] += span.num_tokens
        else:
            joined.append([span.text, origin, span.num_tokens])
    return joined
