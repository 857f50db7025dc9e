"""Writes the tables of docs/edge_config.md from the schema: `python -m tools.config_reference`.

A test compares the two, so that no setting is without its line, and no line without its setting.
"""

from __future__ import annotations

from pathlib import Path

from edge_client.config.pages import reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "edge_config.md"
BEGIN, END = "<!-- begin: python -m tools.config_reference -->\n", "<!-- end -->\n"
NOTE = "\n¹ Set on the device only, never by the fleet.\n"


def renewed(text: str) -> str:
    """The page with the tables as they should be. Raises `ValueError` unless each mark is there once."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after:
        raise ValueError(f"{PAGE.name} must hold {BEGIN.strip()} and {END.strip()}, once each")
    return f"{before}{BEGIN}{reference()}{NOTE}{END}{after}"


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
