"""Text on a terminal whose end may be taken back: a guess stands behind it until it is text or void."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable
from os import terminal_size
from typing import TextIO

TAB = 8


class Screen:
    """Writes committed text, and behind it a guess that the next text, or the next guess, replaces.

    The cursor moves by relative steps, so a screen that scrolls does no harm. What has left the screen cannot
    be taken back, so no more of a guess is shown than fits. The text must begin at the left edge. If the
    window's width changes while a guess is shown, parts of it may stay.
    """

    def __init__(self, out: TextIO, size: Callable[[], terminal_size] = shutil.get_terminal_size) -> None:
        self._out = out
        self._size = size
        self._column = 0  # where the text ends
        self._below = False  # the text fills its line, and the cursor stands on the next one already
        self._guess = ""  # as shown

    def write(self, text: str, painted: str) -> None:
        """Committed text, `painted` as it is to look; the guess, if one is shown, goes."""
        self._erase()
        self._put(text, painted)
        _, self._column = advance(self._column, text, self._size().columns)

    def guess(self, text: str, paint: Callable[[str], str]) -> None:
        """Show this guess and no other; empty for none."""
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
        """As much of it as fits on the screen below the line where the committed text ends."""
        size = self._size()
        rows, column = 0, self._column
        for place, character in enumerate(text):
            down, column = advance(column, character, size.columns)
            rows += down
            if rows >= size.lines - 1:
                return text[:place]
        return text


def advance(column: int, text: str, columns: int) -> tuple[int, int]:
    """How many rows further `text` leads from `column`, and to which. A full line (column = columns) is left
    with the next character, as terminals do it."""
    rows = 0
    for character in text:
        if character == "\n":
            rows, column = rows + 1, 0
        elif character == "\r":
            column = 0
        elif character == "\t":
            column = min(columns - 1, (column // TAB + 1) * TAB)
        elif width := _width(character):
            if column + width > columns:
                rows, column = rows + 1, 0
            column += width
    return rows, column


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
