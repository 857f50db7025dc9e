"""An answer as a person or a program sees it: on a terminal, in a pipe, or as JSON lines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Protocol, TextIO

from forerun.chat.parts import (
    DEVICE,
    DRAFTED,
    SERVER,
    Anew,
    Difference,
    Ended,
    Guess,
    Mode,
    Note,
    Part,
    Retract,
    Run,
    Text,
)
from forerun.paint import RESET, Painter, harmless, note
from forerun.screen import Screen

YELLOW = "\x1b[33m"
LONGEST_SHOWN = 60
"""Characters of a difference that are shown."""


class Display(Protocol):
    """Gets an answer part by part. One for each answer."""

    def take(self, part: Part) -> None: ...

    def close(self) -> None:
        """The answer is over, whole or not: what comes next begins at the left edge."""
        ...


def new_display(painter: Painter, *, origin: bool) -> Display:
    """Shows guesses only where they can be taken back."""
    return OnTerminal(painter, Screen(sys.stdout), origin) if painter.colour else InPipe(sys.stdout, origin)


def legend(painter: Painter) -> str:
    """What `--show-origin` shows, in words."""
    if painter.colour:
        return (
            f"{painter.drafted('green')}: drafted here and confirmed; plain: written by the target; "
            f"{YELLOW}yellow{RESET}: by the draft model alone"
        )
    return "‹marked›: written by the target; «marked»: by the draft model alone; the rest: drafted, confirmed"


def words_of(part: Mode | Note | Difference | Anew) -> str:
    """A line about the answer that is none of it."""
    match part:
        case Mode():
            return f"{part.mode}: {part.why}"
        case Note():
            return part.words
        case Anew():
            return "the text is another one now; from its beginning:"
        case Difference():
            ours, theirs = _short(part.device), _short(part.target)
            return f"the device alone wrote {ours}; the target would have gone on with {theirs}"


class OnTerminal:
    """Text as it comes, a guess behind it that goes where the target writes something else."""

    def __init__(self, painter: Painter, screen: Screen, origin: bool) -> None:
        self._painter, self._screen, self._origin = painter, screen, origin
        self._length = 0  # tokens of text
        self._guess: list[tuple[int, str]] = []  # place and text of each token
        self._is_left = True  # the text ends at the left edge

    def take(self, part: Part) -> None:
        match part:
            case Text():
                self._text(part)
            case Guess():
                self._keep_below(part.start)
                self._guess += enumerate(map(harmless, part.texts), part.start)
            case Retract():
                self._keep_below(part.start)
            case Mode() | Note() | Difference() | Anew():
                self._line(words_of(part))
            case Ended():
                self._guess.clear()
        self._screen.guess("".join(text for _, text in self._guess), self._painter.dim)

    def close(self) -> None:
        self._screen.guess("", self._painter.dim)
        if not self._is_left:
            self._write("\n", "\n")

    def _text(self, part: Text) -> None:
        for run in (replace(run, text=harmless(run.text)) for run in part.runs):
            self._length += run.tokens
            self._guess = [each for each in self._guess if each[0] >= self._length]
            self._write(run.text, self._paint(run))

    def _keep_below(self, start: int) -> None:
        self._guess = [each for each in self._guess if each[0] < start]

    def _line(self, words: str) -> None:
        before = "" if self._is_left else "\n"
        self._write(f"{before}… {words}\n", before + self._painter.dim(f"… {words}") + "\n")

    def _write(self, text: str, painted: str) -> None:
        self._screen.write(text, painted)
        self._is_left = text.endswith("\n") if text else self._is_left

    def _paint(self, run: Run) -> str:
        """What no target has seen stands out in any case."""
        if run.origin == DEVICE and run.text:
            return f"{YELLOW}{run.text}{RESET}"
        return self._painter.drafted(run.text) if self._origin and run.origin == DRAFTED else run.text


class InPipe:
    """The text alone; all else on standard error."""

    def __init__(self, out: TextIO, origin: bool) -> None:
        self._out, self._origin = out, origin
        self._is_left = True

    def take(self, part: Part) -> None:
        match part:
            case Text():
                for run in part.runs:
                    self._write(self._marked(run))
            case Mode() | Note() | Difference() | Anew():
                note(words_of(part))
            case Guess() | Retract() | Ended():
                pass  # what may be taken back has no place in a file

    def close(self) -> None:
        if not self._is_left:
            self._write("\n")

    def _write(self, text: str) -> None:
        text = harmless(text) if self._out.isatty() else text
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
        self._is_left = text.endswith("\n") if text else self._is_left

    def _marked(self, run: Run) -> str:
        if not self._origin or not run.text or run.origin not in (SERVER, DEVICE):
            return run.text
        return f"‹{run.text}›" if run.origin == SERVER else f"«{run.text}»"


class AsEvents:
    """A JSON object a line, for programs."""

    def take(self, part: Part) -> None:
        print(json.dumps({"event": type(part).__name__.lower(), **asdict(part)}), flush=True)

    def close(self) -> None:
        """Each line is whole."""


class Silent:
    """Nothing is shown; the answer is printed at its end."""

    def take(self, part: Part) -> None:
        """Kept by whoever follows the answer."""

    def close(self) -> None:
        """Nothing was begun."""


def _short(text: str) -> str:
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return repr(shown)
