"""Shows tables and live views on a terminal by rich, and the same lines in sequence elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from os import terminal_size
from typing import Literal, Self, TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from common.errors import UnavailableError

Look = TypeVar("Look")

UNBOUNDED = 10_000  # columns: no table is wider


def table(
    titles: Iterable[str],
    rows: Iterable[Iterable[str]],
    left: Collection[str] = (),
    widest: int | None = None,
) -> list[str]:
    """Return a line of titles and a line for each row.

    Args: left, titles of left-aligned columns; widest, the most characters of a cell.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        side: Literal["left", "right"] = "left" if title in left else "right"
        made.add_column(title, justify=side, no_wrap=True, max_width=widest)
    for row in rows:
        made.add_row(*map(Text, row))
    out = io.StringIO()
    Console(file=out, width=UNBOUNDED, color_system=None).print(made)
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]


async def watch(
    look: Callable[[], Awaitable[Look]],
    frame: Callable[[Look, Look | None], list[str]],
    *,
    interval: float,
    live: bool,
    once: bool = False,
    out: TextIO | None = None,
) -> None:
    """Show the lines that `frame` makes of each look and its predecessor, every `interval` seconds.

    A `live` view redraws in place, and waits for a service that is gone. Elsewhere `UnavailableError` ends
    the command.
    """
    out = out or sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")  # edges choose names that this output may not show
    console = Console(file=out, highlight=False)
    screen = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False)
    before: Look | None = None
    with screen if live else contextlib.nullcontext():
        while True:
            try:
                now = await look()
                lines, before = [harmless(line) for line in frame(now, before)], now
            except UnavailableError as error:
                if not live:
                    raise
                lines, before = [str(error)], None
            if live:
                screen.update(_fitting(lines, console.size.height), refresh=True)
            else:
                print("\n".join(lines), file=out, flush=True)
            if once:
                return
            await asyncio.sleep(interval)


def _fitting(lines: list[str], height: int) -> Text:
    """Return the lines that fit on the screen, and the number of the others."""
    if len(lines) > height:
        lines = [*lines[: height - 1], f"and {len(lines) - height + 1} more"]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


# Styles of committed text, which distinguish drafted tokens from the server's own.

GREEN, DIM, BOLD, RESET = "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


OBEYED = {
    code: 0x2421 if code == 0x7F else 0x2400 + code if code < 0x20 else 0xFFFD
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}
"""Maps each control character that a terminal obeys to a visible picture."""


def harmless(text: str) -> str:
    """Return a model's text with pictures in place of control characters.

    Those could set the window's title, erase text, or make the terminal type an answer.
    """
    return text.translate(OBEYED)


class Painter:
    """Styles text for one output. Colours need a terminal without NO_COLOR (no-color.org)."""

    def __init__(self, out: TextIO) -> None:
        self.colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def drafted(self, text: str) -> str:
        return f"{GREEN}{text}{RESET}" if self.colour and text else text

    def bold(self, text: str) -> str:
        return f"{BOLD}{text}{RESET}" if self.colour else text

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{RESET}" if self.colour else text


def number_in(figures: Mapping[str, object], name: str) -> float:
    """Return a figure; 0 if there is none, or no number."""
    value = figures.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def note(text: str) -> None:
    """Print a line of progress on standard error."""
    print(Painter(sys.stderr).dim(f"… {text}"), file=sys.stderr, flush=True)


# How far a long command is: one line that updates in place on a terminal, plain lines elsewhere.

PAUSE = 0.1  # least seconds between two updates of the bar, to disturb measurements little


class ProgressBar:
    """Shows progress as a context manager. Without a terminal, `show` is silent and `note` prints a line."""

    def __init__(self, out: TextIO) -> None:
        self.is_live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._out, self._next_at = out, 0.0
        self._bar = Progress(
            BarColumn(24),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(compact=True),
            console=Console(file=out),
            auto_refresh=False,
            transient=True,
            disable=not self.is_live,
        )
        self._task = self._bar.add_task("")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar, leaving no half line."""
        self._bar.stop()

    def show(self, done: float, total: float, text: str = "") -> None:
        """Show `done` of `total` in any unit of work; `text` says it in the user's units."""
        now = time.monotonic()
        if now >= self._next_at or done >= total:
            self._next_at = now + PAUSE
            self._bar.update(self._task, completed=done, total=total, description=text, refresh=True)

    def note(self, text: str) -> None:
        """Print a line if there is no bar."""
        if not self.is_live:
            print(f"… {text}", file=self._out, flush=True)


# Text on a terminal whose end may be taken back: a guess stands behind it until it is text or void.

TAB = 8


class Screen:
    """Writes committed text, and behind it a guess that the next text or guess replaces.

    The cursor moves by relative steps, so scrolling does no harm. Text that has left the screen cannot be
    erased, so a guess is cut to the screen. The text must begin at the left edge. If the window's width
    changes while a guess is shown, parts of it may stay.
    """

    def __init__(self, out: TextIO, size: Callable[[], terminal_size] = shutil.get_terminal_size) -> None:
        self._out = out
        self._size = size
        self._column = 0  # where the text ends
        self._below = False  # the text fills its line, and the cursor stands on the next one already
        self._guess = ""  # as shown

    def write(self, text: str, painted: str) -> None:
        """Erase the guess and write committed text; `painted` is the same text with its styles."""
        self._erase()
        self._put(text, painted)
        _, self._column = advance(self._column, text, self._size().columns)

    def guess(self, text: str, paint: Callable[[str], str]) -> None:
        """Show this guess only; "" erases it."""
        fitting = self._cut(text)
        if not fitting.startswith(self._guess):
            self._erase()
        if more := fitting[len(self._guess) :]:
            self._put(more, paint(more))
        self._guess = fitting

    def _put(self, text: str, painted: str) -> None:
        if text:
            ends_line = self._below and text[0] == "\n"
            self._out.write(painted.replace("\n", "", 1) if ends_line else painted)
            self._below = False
        self._out.flush()

    def _erase(self) -> None:
        columns = self._size().columns
        rows, _ = advance(self._column, self._guess, columns)
        column = self._column
        if rows and column == columns:  # the guess began on the line below that which the text fills
            rows, column, self._below = rows - 1, 0, True
        up = f"\x1b[{rows}A" if rows else ""
        right = f"\x1b[{column}C" if column else ""
        if self._guess:
            self._out.write(f"{up}\r{right}\x1b[J")
        self._guess = ""

    def _cut(self, text: str) -> str:
        """Cut a guess to the screen below the last line of committed text."""
        size = self._size()
        rows, column = 0, self._column
        for place, character in enumerate(text):
            down, column = advance(column, character, size.columns)
            rows += down
            if rows >= size.lines - 1:
                return text[:place]
        return text


def advance(column: int, text: str, columns: int) -> tuple[int, int]:
    """Return the rows that `text` advances from `column`, and its last column. As on terminals, a full line
    (column = columns) wraps only with the next character."""
    rows = 0
    for character in text:
        if character == "\n":
            rows, column = rows + 1, 0
        elif character == "\r":
            column = 0
        elif character == "\t":
            column = min(columns - 1, (column // TAB + 1) * TAB)
        elif width := cell_len(character):
            if column + width > columns:
                rows, column = rows + 1, 0
            column += width
    return rows, column
