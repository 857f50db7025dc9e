"""Which release of Forerun this is, for the other side and for those who run it."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Of the program; empty where it runs from sources that are not installed. Reads the package's metadata,
    which takes milliseconds."""
    try:
        return importlib.metadata.version("forerun")
    except importlib.metadata.PackageNotFoundError:
        return ""
