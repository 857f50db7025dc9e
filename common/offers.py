"""Finds what installed packages offer by name: entry points of a group, as `schemes` has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from common.errors import ForerunError


@cache
def offered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, in the order of the names."""
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def offer(group: str, name: str, missing: ForerunError) -> Any:
    """Return what an entry point of a group names. Raise `missing` if no installed package has it."""
    entry = offered(group).get(name)
    if entry is None:
        raise missing
    return entry.load()
