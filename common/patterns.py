"""Regular expressions for many fixed texts."""

from __future__ import annotations

import re
from collections.abc import Iterable


def any_of(texts: Iterable[str]) -> str:
    """Return a pattern of the longest of these texts at a place; none of them may be empty.

    What several texts begin with is read once. A pattern that tries one after the other takes 27 µs at each
    `<` with the 6,000 control tokens of Gemma 3.
    """
    by_first = dict[str, list[str]]()
    for each in texts:
        by_first.setdefault(each[0], []).append(each)
    return f"(?:{'|'.join(map(_begun_alike, by_first.values()))})"


def _begun_alike(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    common = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    begin, rests = first[:common], {each[common:] for each in texts}
    further = any_of(sorted(rests - {""})) if rests != {""} else ""
    return re.escape(begin) + further + ("?" if further and "" in rests else "")
