"""What a person types: messages of a line, of several lines, and the end."""

from __future__ import annotations

import sys
from collections.abc import Callable

QUOTES = '"""'
PROMPT, MORE = "> ", "… "

Read = Callable[[str], str]
"""Shows a prompt and gives a line without its end. Raises `EOFError` at the end of all input."""


class Messages:
    """Reads messages. Several lines are one if all but the last end in a backslash, or between two \"\"\"."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def next(self) -> str | None:
        """The next one; None at the end. Ctrl-C at the prompt drops what was begun."""
        while True:
            try:
                return self._message(self._read(PROMPT))
            except KeyboardInterrupt:
                print()
            except EOFError:
                return None

    def _message(self, first: str) -> str:
        if first.lstrip().startswith(QUOTES):
            return self._block(first.lstrip().removeprefix(QUOTES))
        lines = [first]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            if (line := self._line()) is None:
                break
            lines.append(line)
        return "\n".join(lines)

    def _block(self, first: str) -> str:
        """As far as the closing quotes, or the end of input."""
        lines = [first]
        while QUOTES not in lines[-1]:
            if (line := self._line()) is None:
                return "\n".join(lines).strip("\n")
            lines.append(line)
        lines[-1] = lines[-1].partition(QUOTES)[0]
        return "\n".join(lines).strip("\n")

    def _line(self) -> str | None:
        try:
            return self._read(MORE)
        except EOFError:
            return None


def reader(is_terminal: bool) -> Read:
    """Of standard input: with prompts, and a history of lines where readline is there, on a terminal."""
    if not is_terminal:
        return lambda prompt: _plain_line()
    try:
        import readline  # noqa: F401 - `input` then edits lines and remembers them, in memory only
    except ImportError:
        pass
    return input


def _plain_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")
