"""How committed text is shown: drafted tokens told apart from the server's own, with colours or without."""

from __future__ import annotations

import os
import sys
from typing import TextIO

GREEN, DIM, BOLD, RESET = "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


OBEYED = {
    code: 0x2421 if code == 0x7F else 0x2400 + code if code < 0x20 else 0xFFFD
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}
"""What a terminal obeys instead of showing it, and a picture of each."""


def harmless(text: str) -> str:
    """A model's text for a terminal. Who chooses its tokens could else set the window's title, take back what
    stands above, or have the terminal type an answer."""
    return text.translate(OBEYED)


class Painter:
    """Styles for one output. Colours only on a terminal and without NO_COLOR (no-color.org)."""

    def __init__(self, out: TextIO) -> None:
        self.colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def legend(self) -> str:
        if self.colour:
            return f"{GREEN}green{RESET}: drafted on the device and confirmed; plain: written by the server"
        return "‹marked›: written by the server; the rest: drafted on the device and confirmed"

    @property
    def guess_legend(self) -> str:
        """Nothing where no guess is shown: what cannot be taken back must not be."""
        return f"; {DIM}dim{RESET}: the draft's own guess while no server is there" if self.colour else ""

    def drafted(self, text: str) -> str:
        return f"{GREEN}{text}{RESET}" if self.colour and text else text

    def server_made(self, text: str) -> str:
        return text if self.colour or not text else f"‹{text}›"

    def bold(self, text: str) -> str:
        return f"{BOLD}{text}{RESET}" if self.colour else text

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{RESET}" if self.colour else text


def note(text: str) -> None:
    """A line of progress, on standard error."""
    print(Painter(sys.stderr).dim(f"… {text}"), file=sys.stderr, flush=True)
