"""What an engine may tell of itself beside its results: how many steps ran as a graph, for example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

Stats = Mapping[str, float | Mapping[str, float]]
"""Figures by name (lower case, underscores): totals that only grow under names that end in `_total`, anything
else as it stands. A mapping tells a figure by reason."""


@runtime_checkable
class ReportsStats(Protocol):
    """An engine that counts something. The metrics take it up without knowing what it is."""

    def stats(self) -> Stats:
        """How it stands. Called from another thread than `evaluate`, and must not wait for it."""
        ...


def stats_of(engine: object) -> Stats:
    """The engine's figures; none if it has none."""
    return engine.stats() if isinstance(engine, ReportsStats) else {}
