"""Checks JSON text character by character, so that it can be passed on while it is written."""

from __future__ import annotations

import re
from enum import Enum

MAX_DEPTH = 64
"""Limit on nested values."""

SPACE = " \t\n\r"
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORDS = ("true", "false", "null")
SCALAR = frozenset("+-.0123456789eEtrufalsn")
ESCAPES = '"\\/bfnrtu'
HEX = frozenset("0123456789abcdefABCDEF")


class _Wants(Enum):
    """Names what may come next between values."""

    VALUE = "a value"
    VALUE_OR_END = "a value, or the end of an empty list"
    KEY = "a key"
    KEY_OR_END = "a key, or the end of an empty object"
    COLON = "a colon"
    COMMA = "a comma or an end"
    NOTHING = "nothing: the text is whole"


class JsonScanner:
    """Checks one JSON value (RFC 8259). `feed` takes the next character.

    `began` is the depth of the value that the last character began, and `ended` that of the outermost value
    that ended with it or, for a number or a word, before it. The outermost value has depth 0.
    """

    def __init__(self) -> None:
        self.began: int | None = None
        self.ended: int | None = None
        self._open = ""  # the brackets around the place
        self._keys = [""]  # the last key at each depth
        self._wants = _Wants.VALUE
        self._string: list[str] | None = None  # the string under way
        self._escape = ""  # an unfinished escape in it
        self._scalar = ""  # the number or word under way

    @property
    def depth(self) -> int:
        """Return how many brackets are open."""
        return len(self._open)

    @property
    def is_whole(self) -> bool:
        """Tell whether the value has ended."""
        return self._wants is _Wants.NOTHING

    def key(self, depth: int) -> str:
        """Return the key, as it is written, of the present value at this depth; empty in a list."""
        return self._keys[depth] if depth < len(self._keys) else ""

    def feed(self, char: str) -> bool:
        """Take a character. Return False, and change nothing else, if it cannot stand here."""
        self.began = self.ended = None
        if self._string is not None:
            return self._in_string(self._string, char)
        if self._scalar:
            if char in SCALAR:
                self._scalar += char
                return len(self._scalar) < 512
            if not (self._scalar in WORDS or NUMBER.fullmatch(self._scalar)):
                return False
            self._scalar = ""
            self._end()
        return char in SPACE or self._between(char)

    def _between(self, char: str) -> bool:
        wants = self._wants
        match char:
            case '"' if wants in (_Wants.KEY, _Wants.KEY_OR_END):
                self._string = []
            case '"' | "{" | "[" if wants in (_Wants.VALUE, _Wants.VALUE_OR_END):
                self.began = self.depth
                return self._begin(char)
            case ":" if wants is _Wants.COLON:
                self._wants = _Wants.VALUE
            case "," if wants is _Wants.COMMA:
                self._wants = _Wants.KEY if self._open[-1] == "{" else _Wants.VALUE
            case "}" if self._open[-1:] == "{" and wants in (_Wants.COMMA, _Wants.KEY_OR_END):
                self._close()
            case "]" if self._open[-1:] == "[" and wants in (_Wants.COMMA, _Wants.VALUE_OR_END):
                self._close()
            case _ if char in "-0123456789tfn" and wants in (_Wants.VALUE, _Wants.VALUE_OR_END):
                self.began, self._scalar = self.depth, char
            case _:
                return False
        return True

    def _begin(self, char: str) -> bool:
        if char == '"':
            self._string, self._wants = [], _Wants.VALUE
            return True
        self._open += char
        self._keys.append("")
        self._wants = _Wants.KEY_OR_END if char == "{" else _Wants.VALUE_OR_END
        return self.depth <= MAX_DEPTH

    def _close(self) -> None:
        self._open = self._open[:-1]
        self._keys.pop()
        self._end()

    def _end(self) -> None:
        self.ended = self.depth
        self._wants = _Wants.COMMA if self._open else _Wants.NOTHING

    def _in_string(self, string: list[str], char: str) -> bool:
        if self._escape:
            return self._in_escape(char)
        if char == "\\":
            self._escape = char
        elif char == '"':
            self._string = None
            if self._wants is _Wants.VALUE:
                self._end()
            else:
                self._keys[-1], self._wants = "".join(string), _Wants.COLON
            return True
        elif char < " ":
            return False
        string.append(char)
        return True

    def _in_escape(self, char: str) -> bool:
        assert self._string is not None, "an escape is part of a string"
        allowed = char in ESCAPES if len(self._escape) == 1 else char in HEX
        self._escape += char
        self._string.append(char)
        if self._escape[1] != "u" or len(self._escape) == 6:
            self._escape = ""
        return allowed
