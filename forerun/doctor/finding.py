"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # it works, and could be better
    FAIL = "fail"
    SKIP = "skip"  # not known, and the words say why


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    words: str
    advice: str = ""  # what to do about it

    @property
    def line(self) -> str:
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.level.value:4}  {self.name}: {self.words}{advice}"


def ok(name: str, words: str) -> Finding:
    return Finding(name, Level.OK, words)


def warn(name: str, words: str, advice: str = "") -> Finding:
    return Finding(name, Level.WARN, words, advice)


def fail(name: str, words: str, advice: str = "") -> Finding:
    return Finding(name, Level.FAIL, words, advice)


def skip(name: str, words: str) -> Finding:
    return Finding(name, Level.SKIP, words)
