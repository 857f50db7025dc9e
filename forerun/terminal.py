"""Shows tables and live views on a terminal by rich, and the same lines in sequence elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Self, TextIO, TypeVar

from rich.console import Console, RenderableType
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
    show_any_text(out)  # edges choose names
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


def show_any_text(out: TextIO) -> None:
    """Have `out` replace the characters that it cannot show."""
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")


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


class _BarBelow(Progress):
    """Shows lines of text above the bar."""

    lines: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.lines:
            yield Text("\n".join(self.lines), no_wrap=True, overflow="ellipsis")
        yield from super().get_renderables()


PAUSE = 0.1  # least seconds between two updates of the bar, to disturb measurements little


class ProgressBar:
    """Shows progress as a context manager. Without a terminal, `show` is silent and `note` prints a line."""

    def __init__(self, out: TextIO) -> None:
        self.is_live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._out, self._next_at = out, 0.0
        self._bar = _BarBelow(
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

    def show_above(self, lines: Sequence[str]) -> None:
        """Show a table above the bar in place of the last one, or print it if there is no bar."""
        self._bar.lines = lines
        self._bar.refresh()
        if not self.is_live:
            print(*lines, sep="\n", file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print a line if there is no bar."""
        if not self.is_live:
            print(f"… {text}", file=self._out, flush=True)
