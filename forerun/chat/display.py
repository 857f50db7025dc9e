"""Shows an answer to a person or a program, and its figures in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol, TextIO

from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.texts.events import (
    DifferenceFound,
    ModeChanged,
    NoteAdded,
    PreviewAdded,
    PreviewWithdrawn,
    TextAdded,
    TextEnded,
    TextEvent,
    TextRestarted,
    ThoughtAdded,
    origins_of,
)
from forerun.terminal import RESET, Painter, Screen, harmless, note, number_in

Figures = Mapping[str, Any]

YELLOW = "\x1b[33m"
LONGEST_SHOWN = 60
"""Characters shown of a difference."""


EVENT_NAMES: dict[type[TextEvent], str] = {
    TextAdded: "text",
    ThoughtAdded: "reasoning",
    ModeChanged: "mode",
    NoteAdded: "note",
    PreviewAdded: "guess",
    PreviewWithdrawn: "retract",
    DifferenceFound: "difference",
    TextRestarted: "anew",
    TextEnded: "ended",
}
"""Names of events in `--jsonl`, by their classes."""


class Display(Protocol):
    """Shows one answer, event by event."""

    def take(self, event: TextEvent) -> None: ...

    def close(self) -> None: ...  # the answer is over; the next output begins at the left edge


def new_display(painter: Painter, *, origin: bool, prompt: str = "") -> Display:
    """Return a display that shows previews only if the output can take them back. The text goes on behind
    `prompt`."""
    if not painter.colour:
        sys.stdout.write(prompt)
        return InPipe(sys.stdout, origin)
    screen = Screen(sys.stdout)
    screen.write(prompt, painter.bold(prompt))
    return OnTerminal(painter, screen, origin)


def legend(painter: Painter) -> str:
    """Return the meaning of the marks of `--show-origin`."""
    if painter.colour:
        return (
            f"{painter.drafted('green')}: drafted here and confirmed; plain: written by the target; "
            f"{YELLOW}yellow{RESET}: by the draft model alone; {painter.dim('dim')}: its guess, not confirmed"
        )
    return "‹marked›: written by the target; «marked»: by the draft model alone; the rest: drafted, confirmed"


def words_of(event: ModeChanged | NoteAdded | DifferenceFound | TextRestarted) -> str:
    """Return a line about the answer."""
    match event:
        case ModeChanged():
            return f"{event.mode}: {event.why}"
        case NoteAdded():
            return event.words
        case TextRestarted():
            return "the text has changed; from its beginning:"
        case DifferenceFound():
            ours, theirs = map(_short, (event.device, event.target))
            return f"the device alone wrote {ours}; the target would have gone on with {theirs}"


class OnTerminal:
    """Shows text as it arrives and a preview after it, which the target's text replaces."""

    def __init__(self, painter: Painter, screen: Screen, origin: bool) -> None:
        self._painter, self._screen, self._origin = painter, screen, origin
        self._length = 0  # tokens of text
        self._preview: list[tuple[int, str]] = []  # place and text of each token
        self._is_left = True  # the text ends at the left edge
        self._thinks = False  # the last text was reasoning

    def take(self, event: TextEvent) -> None:
        match event:
            case TextAdded():
                self._text(event)
            case ThoughtAdded():
                self._thinks, text = True, harmless(event.text)
                self._write(text, self._painter.dim(text))
            case PreviewAdded():
                self._keep_below(event.start)
                self._preview += enumerate(map(harmless, event.texts), event.start)
            case PreviewWithdrawn():
                self._keep_below(event.start)
            case ModeChanged() | NoteAdded() | DifferenceFound() | TextRestarted():
                self._line(words_of(event))
            case TextEnded():
                self._preview.clear()
        self._screen.guess("".join(text for _, text in self._preview), self._painter.dim)

    def close(self) -> None:
        self._screen.guess("", self._painter.dim)
        if not self._is_left:
            self._write("\n", "\n")

    def _text(self, event: TextAdded) -> None:
        if self._thinks and event.text:
            self._thinks = False
            self._write("\n\n", "\n\n")
        for span in (replace(span, text=harmless(span.text)) for span in event.spans):
            self._length += span.num_tokens
            self._preview = [each for each in self._preview if each[0] >= self._length]
            self._write(span.text, self._paint(span))

    def _keep_below(self, start: int) -> None:
        self._preview = [each for each in self._preview if each[0] < start]

    def _line(self, words: str) -> None:
        before = "" if self._is_left else "\n"
        self._write(f"{before}… {words}\n", before + self._painter.dim(f"… {words}") + "\n")

    def _write(self, text: str, painted: str) -> None:
        self._screen.write(text, painted)
        self._is_left = text.endswith("\n") if text else self._is_left

    def _paint(self, span: TextSpan) -> str:
        """Colour a span. Text that no target has confirmed is always marked."""
        if span.origin is TokenOrigin.DEVICE and span.text:
            return f"{YELLOW}{span.text}{RESET}"
        drafted = self._origin and span.origin is TokenOrigin.DRAFTED
        return self._painter.drafted(span.text) if drafted else span.text


class InPipe:
    """Writes the text alone; notes go to standard error."""

    def __init__(self, out: TextIO, origin: bool) -> None:
        self._out, self._origin = out, origin
        self._is_left = True

    def take(self, event: TextEvent) -> None:
        match event:
            case TextAdded():
                for span in event.spans:
                    self._write(self._marked(span))
            case ModeChanged() | NoteAdded() | DifferenceFound() | TextRestarted():
                note(words_of(event))
            case PreviewAdded() | PreviewWithdrawn() | TextEnded() | ThoughtAdded():
                pass  # a file gets the answer alone, and no text that may be taken back

    def close(self) -> None:
        if not self._is_left:
            self._write("\n")

    def _write(self, text: str) -> None:
        text = harmless(text) if self._out.isatty() else text
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
        self._is_left = text.endswith("\n") if text else self._is_left

    def _marked(self, span: TextSpan) -> str:
        if not self._origin or not span.text or span.origin not in (TokenOrigin.SERVER, TokenOrigin.DEVICE):
            return span.text
        return f"‹{span.text}›" if span.origin is TokenOrigin.SERVER else f"«{span.text}»"


class AsEvents:
    """Writes one JSON object a line, for programs."""

    def take(self, event: TextEvent) -> None:
        fields = asdict(event)
        if isinstance(event, TextAdded):
            names = ("text", "origin", "tokens")
            fields = {"runs": [dict(zip(names, span, strict=True)) for span in origins_of(event.spans)]}
        print(json.dumps({"event": EVENT_NAMES[type(event)], **fields}), flush=True)

    def close(self) -> None: ...


class Silent:
    """Shows nothing. The caller prints the answer at its end."""

    def take(self, event: TextEvent) -> None: ...

    def close(self) -> None: ...


def _short(text: str) -> str:
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return repr(shown)


# Figures in words -------------------------------------------------------------------------------------------


def stats_line(figures: Figures) -> str:
    """Return an answer's known figures in words."""
    count, elapsed = number_in(figures, "tokens"), number_in(figures, "elapsed_ms")
    parts = [f"{count:.0f} {'token' if count == 1 else 'tokens'} in {elapsed:.0f} ms"]
    pace, first = ms_per_token(figures), f"the first after {number_in(figures, 'first_token_ms'):.0f} ms"
    parts.append(first if pace is None else f"{pace:.1f} ms per token, {first}")
    if (waited := number_in(figures, "waited_ms")) >= 100:
        parts.append(f"{waited / 1e3:.1f} s in the daemon's queue before")
    parts += _steps_and_shares(figures)
    if rtt := number_in(figures, "rtt_p50_ms"):
        parts.append(f"RTT {rtt:.1f} ms")
    if speedup := number_in(figures, "estimated_speedup"):
        parts.append(f"about {speedup:.1f} times the pace of streaming")
    if resumes := number_in(figures, "resumes"):
        parts.append(f"the link was taken up again {resumes:.0f} {'time' if resumes == 1 else 'times'}")
    if figures.get("mode") not in (None, "ahead"):
        parts.append(str(figures["mode"]))
    return f"[{'; '.join(parts)}]"


def total_line(answers: Sequence[Figures]) -> str:
    """Return the figures of a conversation in words."""
    if not answers:
        return "nothing was written yet"
    names = ("tokens", "elapsed_ms", "accepted", "proposed", "target_steps", "device_tokens", "resumes")
    total: dict[str, Any] = {name: sum(number_in(each, name) for each in answers) for name in names}
    if total["target_steps"]:
        by_target = total["tokens"] - total["device_tokens"]
        total["acceptance_length"] = by_target / total["target_steps"]
    number = "1 answer" if len(answers) == 1 else f"{len(answers)} answers"
    parts = [f"{total['tokens']:.0f} tokens in {number} and {total['elapsed_ms'] / 1e3:.1f} s"]
    if total["tokens"]:
        parts.append(f"{total['elapsed_ms'] / total['tokens']:.1f} ms each")
    return f"[{'; '.join([*parts, *_steps_and_shares(total)])}]"


def ms_per_token(figures: Figures) -> float | None:
    """Return the pace of the tokens after the first; None if there are none."""
    count, first = number_in(figures, "tokens"), number_in(figures, "first_token_ms")
    return (number_in(figures, "elapsed_ms") - first) / (count - 1) if count > 1 else None


def _steps_and_shares(figures: Figures) -> list[str]:
    parts = list[str]()
    if length := number_in(figures, "acceptance_length"):
        parts.append(f"{length:.2f} tokens per target step")
    count, proposed = number_in(figures, "tokens"), number_in(figures, "proposed")
    if count and proposed:
        accepted = number_in(figures, "accepted")
        share = 100 * accepted / count
        parts.append(f"{share:.0f} % of the text drafted here ({accepted:.0f} of {proposed:.0f} guesses)")
    return parts
