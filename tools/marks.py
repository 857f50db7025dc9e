"""Pages whose tables are made from their definitions, between two marks."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end -->\n"


def put_between(begin: str, section: str, text: str, page: Path) -> str:
    """The page's text with `section` between the marks. Raises `ValueError` unless each is there once."""
    before, mark, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not (mark and end) or begin in after:
        raise ValueError(f"{page.name} must hold {begin.strip()} and {END.strip()}, once each")
    return before + begin + section + END + after
