"""Shows an answer to a person or a program, and its figures in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TextIO

from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.texts.events import (
    DifferenceFound,
    ModeChanged,
    NoteAdded,
    TextAdded,
    TextEvent,
    ThoughtAdded,
)
from forerun.terminal import RESET, Painter, harmless, note, number_in, show_any_text

Figures = Mapping[str, Any]

YELLOW = "\x1b[33m"
LONGEST_SHOWN = 60
"""Characters shown of a difference."""


def legend(painter: Painter) -> str:
    """Return the meaning of the marks of `--show-origin`."""
    if painter.colour:
        return (
            f"{painter.drafted('green')}: drafted here and confirmed; plain: written by the target; "
            f"{YELLOW}yellow{RESET}: by the draft model alone"
        )
    return "‹marked›: written by the target; «marked»: by the draft model alone; the rest: drafted, confirmed"


class Display:
    """Shows one answer, event by event. A terminal gets colours, reasoning and notes; a pipe gets the text
    alone, and notes go to standard error. The text goes on behind `prompt`."""

    def __init__(self, painter: Painter, out: TextIO, *, origin: bool, prompt: str = "") -> None:
        show_any_text(out)
        self._painter, self._out, self._origin = painter, out, origin
        self._is_left = True  # the text ends at the left edge
        self._thinks = False  # the last text was reasoning
        self._write(prompt, painter.bold)

    def take(self, event: TextEvent) -> None:
        """Show an event. Previews are not shown, as a terminal cannot well take text back."""
        match event:
            case TextAdded():
                if self._thinks and event.text:
                    self._thinks = False
                    self._write("\n\n")
                for span in event.spans:
                    self._span(span)
            case ThoughtAdded() if self._painter.colour:
                self._thinks = True
                self._write(event.text, self._painter.dim)
            case ModeChanged():
                self._line(f"{event.mode}: {event.why}")
            case NoteAdded():
                self._line(event.words)
            case DifferenceFound():
                ours, theirs = map(_short, (event.device, event.target))
                self._line(f"the device alone wrote {ours}; the target would have gone on with {theirs}")

    def close(self) -> None:
        """End the answer: the next output begins at the left edge."""
        if not self._is_left:
            self._write("\n")

    def _span(self, span: TextSpan) -> None:
        """Show a span. On a terminal, text that no target has confirmed is always marked."""
        if self._painter.colour:
            if span.origin is TokenOrigin.DEVICE:
                self._write(span.text, lambda text: f"{YELLOW}{text}{RESET}")
            else:
                drafted = self._origin and span.origin is TokenOrigin.DRAFTED
                self._write(span.text, self._painter.drafted if drafted else str)
            return
        marks: dict[TokenOrigin | None, str] = {TokenOrigin.SERVER: "‹{}›", TokenOrigin.DEVICE: "«{}»"}
        self._write(span.text, (marks.get(span.origin, "{}") if self._origin else "{}").format)

    def _line(self, words: str) -> None:
        """Show words that are no part of the answer."""
        if self._painter.colour:
            self.close()
            self._write(f"… {words}\n", self._painter.dim)
        else:
            note(words)

    def _write(self, text: str, paint: Callable[[str], str] = str) -> None:
        if text:
            shown = harmless(text) if self._out.isatty() else text
            self._out.write(paint(shown))
            self._is_left = text.endswith("\n")
        self._out.flush()


def _short(text: str) -> str:
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return repr(shown)


def stats_line(figures: Figures) -> str:
    """Return an answer's known figures in words."""
    count, elapsed = number_in(figures, "tokens"), number_in(figures, "elapsed_ms")
    first_at, proposed = number_in(figures, "first_token_ms"), number_in(figures, "proposed")
    parts = [f"{count:.0f} {'token' if count == 1 else 'tokens'} in {elapsed:.0f} ms"]
    pace = f"{(elapsed - first_at) / (count - 1):.1f} ms per token, " if count > 1 else ""
    parts.append(f"{pace}the first after {first_at:.0f} ms")
    if (waited := number_in(figures, "waited_ms")) >= 100:
        parts.append(f"{waited / 1e3:.1f} s of that before it began")
    if length := number_in(figures, "acceptance_length"):
        parts.append(f"{length:.2f} tokens per target step")
    if count and proposed:
        accepted = number_in(figures, "accepted")
        share = 100 * accepted / count
        parts.append(f"{share:.0f} % of the text drafted here ({accepted:.0f} of {proposed:.0f} guesses)")
    if rtt := number_in(figures, "rtt_p50_ms"):
        parts.append(f"RTT {rtt:.1f} ms")
    if speedup := number_in(figures, "estimated_speedup"):
        parts.append(f"about {speedup:.1f} times the pace of streaming")
    if resumes := number_in(figures, "resumes"):
        parts.append(f"the link was taken up again {resumes:.0f} {'time' if resumes == 1 else 'times'}")
    if figures.get("mode") not in (None, "ahead"):
        parts.append(str(figures["mode"]))
    return f"[{'; '.join(parts)}]"
