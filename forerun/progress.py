"""How far a long command is: one line that updates in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

WIDTH = 24  # of the bar, in characters
PAUSE = 0.1  # seconds between two looks of the bar, at least; terminals are slow
RETURN, CLEAR = "\r", "\x1b[K"


class ProgressBar:
    """A context manager around the work. Without a terminal, `show` says nothing and `note` prints a line."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._out, self._clock = out, clock
        self._began_at = clock()
        self._next_at = self._began_at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave no half line behind."""
        if self.is_live:
            self._write(RETURN + CLEAR)

    def show(self, done: float, total: float, text: str = "") -> None:
        """`done` of `total`, in any unit of work; `text` says in what the user counts."""
        now = self._clock()
        if not self.is_live or (now < self._next_at and done < total):
            return
        self._next_at = now + PAUSE
        share = done / total if total else 1.0
        full = round(WIDTH * share)
        left = self.left(done, total)
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {100 * share:3.0f} %  {text}  {left} left"
        self._write(RETURN + line[: shutil.get_terminal_size().columns - 1] + CLEAR)

    def left(self, done: float, total: float) -> str:
        """How long the rest takes if it goes on so; `?` before the first step."""
        return _duration((self._clock() - self._began_at) * (total - done) / done) if done else "?"

    def note(self, text: str) -> None:
        """A line of its own where there is no bar."""
        if not self.is_live:
            self._write(f"… {text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _duration(seconds: float) -> str:
    """`45 s`, `12 min 5 s`, `3 h 20 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
