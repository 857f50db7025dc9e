"""Writes the tables of docs/edge_config.md from the schema: `python -m tools.config_reference`.

A test compares the two, so that no setting is without its line, and no line without its setting.
"""

from __future__ import annotations

from pathlib import Path

from edge_client.config.pages import reference
from tools.marks import put_between

PAGE = Path(__file__).resolve().parent.parent / "docs" / "edge_config.md"
BEGIN = "<!-- begin: python -m tools.config_reference -->\n"
NOTE = "\n¹ Set on the device only, never by the fleet.\n"


def renewed(text: str) -> str:
    """The page with the tables as they should be. Raises `ValueError` unless each mark is there once."""
    return put_between(BEGIN, reference() + NOTE, text, PAGE)


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
