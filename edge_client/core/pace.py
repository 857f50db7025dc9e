"""How long this device's draft model takes, by rows and for reading. It is kept from text to text."""

from __future__ import annotations

from collections.abc import Mapping

from common.estimators import WidthTimes
from edge_client.core.drafter import Reading

ROWS: Mapping[int, float] = {1: 0.0053, 2: 0.0056}
"""Seconds of a draft step by rows, before anything is measured: a 0.5B model on a laptop's accelerator."""

READS: Mapping[int, float] = {1: 0.0010, 2: 0.0015}
"""Seconds that reading so many committed tokens adds, before anything is measured."""

AFTER_REST = 0.25
"""Seconds without a draft step. The next step then finds cold caches and a slow clock."""


class DraftPace:
    """Two tables: seconds of a draft step by rows, and seconds that reading committed tokens adds to one.

    The owner of the draft model keeps one object for all sessions of that model.
    """

    def __init__(self) -> None:
        self.rows = WidthTimes(ROWS)
        self.reads = WidthTimes(READS)

    def sample(self, rows: int, took: float, reading: Reading, rested: float) -> bool:
        """Book a draft step of `rows` rows that took `took` seconds, after `rested` seconds without one.

        Returns whether the step tells the pace of rows alone: it read nothing, had no dear masks and followed
        another closely.
        """
        if reading.num_tokens:
            self.reads.sample(reading.num_tokens, max(0.0, reading.seconds - self.rows.predict(rows)))
            return False
        if reading.has_dear_masks or rested > AFTER_REST or not rows:
            return False
        self.rows.sample(rows, took)
        return True
