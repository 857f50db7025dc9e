"""What an engine may tell of itself beside its results: how many steps ran as a graph, for example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class ReportsStats(Protocol):
    """An engine that counts something. The metrics take it up without knowing what it is."""

    def stats(self) -> Mapping[str, float]:
        """Figures by name (lower case, underscores): totals that only grow under names that end in `_total`,
        anything else as it stands. Called from another thread than `evaluate`, and must not wait for it."""
        ...


def stats_of(engine: object) -> dict[str, float]:
    """The engine's figures; none if it has none."""
    return dict(engine.stats()) if isinstance(engine, ReportsStats) else {}
