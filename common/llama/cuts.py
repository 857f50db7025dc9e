"""Cuts long texts where llama.cpp's tokenizer would, so that its time grows with the length of a text alone.

llama.cpp searches each piece of a text for each special token, one after the other: a megabyte of `<` takes
most of a minute with the 6,000 control tokens of Gemma 3. One pattern finds all of them in one pass.

Its SentencePiece tokenizer copies its whole output for each character that it spells in bytes, which takes
minutes for a megabyte of such characters. Pieces of bounded length take time in proportion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from common.patterns import any_of

SPACE = " \t\n\v\f\r"
"""What C's isspace counts as such."""

PIECE = 4096
"""Least characters of a piece between two characters that are spelt in bytes."""


@dataclass(frozen=True, slots=True)
class Special:
    """Describes a special token, which llama.cpp looks for before it tokenizes."""

    token: int
    is_control: bool  # else a user's, which a text of a user may contain
    strips_left: bool = False  # white space before it goes, too
    strips_right: bool = False


class ControlCuts:
    """Finds control tokens in a text as llama.cpp does.

    llama.cpp takes the longest special token first, wherever it stands, and so on. That is the longest at the
    leftmost place, unless the end of one may be the beginning of another: see `of`. Texts are in Latin-1, one
    character a byte.
    """

    def __init__(self, specials: Mapping[str, Special]) -> None:
        """`specials` holds each special token by its text."""
        self._specials = specials
        self._any = re.compile(any_of(specials)) if specials else None

    @classmethod
    def of(cls, specials: Mapping[str, Special]) -> ControlCuts | None:
        """Return the cuts; None if the leftmost and longest token need not be llama.cpp's choice."""
        strips = any(each.is_control and each.strips_left | each.strips_right for each in specials.values())
        if "" in specials or _may_overlap(specials):
            return None
        if strips and any(text[0] in SPACE or text[-1] in SPACE for text in specials):
            return None
        return cls(specials)

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the control tokens of a text, and what lies between them."""
        start, strips_right = 0, False
        for match in self._any.finditer(text) if self._any is not None else ():
            special = self._specials[match[0]]
            if not special.is_control:
                continue
            piece = text[start : match.start()]
            piece = piece.lstrip(SPACE) if strips_right else piece
            piece = piece.rstrip(SPACE) if special.strips_left else piece
            if piece:
                yield piece
            yield special.token
            start, strips_right = match.end(), special.strips_right
        piece = text[start:].lstrip(SPACE) if strips_right else text[start:]
        if piece:
            yield piece


def _may_overlap(texts: Iterable[str]) -> bool:
    """Tell whether a proper end of one text is a proper beginning of another. It may be if both repeat one
    unit: of such texts the leftmost and longest is llama.cpp's choice, too."""
    units = {text: _unit(text) for text in texts}
    starts = dict[str, str]()  # the unit that a beginning repeats; empty: none, or several
    for text, unit in units.items():
        for end in range(1, len(text)):
            own = "" if end % len(unit) else unit
            if starts.setdefault(text[:end], own) != own:
                starts[text[:end]] = ""
    return any(
        starts.get(text[at:], unit) != unit for text, unit in units.items() for at in range(1, len(text))
    )


def _unit(text: str) -> str:
    """Return the shortest text that `text` repeats, once or several times."""
    return text[: (text * 2).index(text, 1)]


def cut_at(text: str, loose: frozenset[str], *, in_runs: bool) -> Iterator[str]:
    """Yield `text` in pieces. Each but the first begins with a `loose` character, which merges with no other,
    and has `PIECE` characters before a further one may begin the next.

    `in_runs` cuts between two of them only. So no piece follows a special token, behind which some
    vocabularies add a space.
    """
    kind = f"[{''.join(map(re.escape, sorted(loose)))}]"
    search = re.compile(f"(?<={kind}){kind}" if in_runs else kind).search
    start = 0
    while match := search(text, start + PIECE):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]
