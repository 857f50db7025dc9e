"""Measures the draft model's time by rows and for reading. The measurements are kept from text to text."""

from __future__ import annotations

from collections.abc import Mapping

from common.estimators import WidthTimes
from edge_client.core.nouns import ReadingTime

ROWS: Mapping[int, float] = {1: 0.0053, 2: 0.0056}
"""Seconds of a draft step by rows, before any measurement: a 0.5B model on a laptop's accelerator."""

READS: Mapping[int, float] = {1: 0.0010, 2: 0.0015}
"""Seconds that reading this many committed tokens adds, before any measurement."""

DRIFT = 2.0
"""Factor between measured and later steps beyond which the measurement is no longer believed."""

AFTER_REST = 0.25
"""Seconds of rest after which the next draft step finds cold caches and a slow clock."""


class DraftPace:
    """Estimates the seconds of a draft step by rows, and the seconds that reading committed tokens adds. One
    object per draft model."""

    def __init__(self) -> None:
        self.rows = WidthTimes(ROWS)
        self.reads = WidthTimes(READS)

    @property
    def has_drifted(self) -> bool:
        """Tell whether texts' steps take `DRIFT` times as long as the measured ones, or as short."""
        return not 1 / DRIFT < self.rows.correction < DRIFT

    def sample(self, rows: int, took: float, reading: ReadingTime, rested: float) -> bool:
        """Book a draft step of `rows` rows that took `took` seconds, after `rested` seconds of rest.

        Return whether the step measured the pace of rows alone.
        """
        if reading.num_tokens:
            self.reads.sample(reading.num_tokens, max(0.0, reading.seconds - self.rows.predict(rows)))
            return False
        if reading.has_dear_masks or rested > AFTER_REST or not rows:
            return False
        self.rows.sample(rows, took)
        return True
