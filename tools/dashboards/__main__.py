"""Rewrites the files."""

from __future__ import annotations

from tools.dashboards import DASHBOARDS, FOLDER
from tools.dashboards.grafana import text_of


def main() -> int:
    """Each by its name."""
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(text_of(dashboard), encoding="utf-8")
        print(FOLDER / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
