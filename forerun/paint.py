"""How committed text is shown: drafted tokens told apart from the server's own, with colours or without."""

from __future__ import annotations

import os
import sys
from typing import TextIO

GREEN, DIM, BOLD, RESET = "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


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
