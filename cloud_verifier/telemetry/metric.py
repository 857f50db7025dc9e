"""What a metric is: a name, a meaning, and where its value comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloud_verifier.telemetry.histogram import Histogram
from cloud_verifier.telemetry.snapshot import Snapshot

Kind = Literal["gauge", "counter", "histogram", "info"]

Value = float | Histogram | Mapping[str, float] | Mapping[str, str]
"""Of a metric: a number, a distribution, a number for each value of its label; of an info, its labels."""

SUFFIXES: dict[Kind, str] = {"counter": "_total", "info": "_info"}
"""What the exposition adds to a name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  # without its suffix
    kind: Kind
    meaning: str
    value: Callable[[Snapshot], Value] = field(repr=False)
    label: str = ""  # that tells its values apart, if there are several

    @property
    def exposed(self) -> str:
        """Its name as queries have it; a histogram's series add `_bucket`, `_sum` and `_count` to it."""
        return self.name + SUFFIXES.get(self.kind, "")
