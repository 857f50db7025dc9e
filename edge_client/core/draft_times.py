"""Measures the draft model's time by rows and for reading. The measurements are kept from text to text."""

from __future__ import annotations

from collections.abc import Mapping

from common.estimators import IntervalEstimator, WidthTimes
from edge_client.core.effects import ReadingTime

ROWS: Mapping[int, float] = {1: 0.0053, 2: 0.0056}
"""Seconds of a draft step by rows, before any measurement: a 0.5B model on a laptop's accelerator."""

READS: Mapping[int, float] = {1: 0.0010, 2: 0.0015}
"""Seconds that reading this many committed tokens adds, before any measurement."""

AFTER_REST = 0.25
"""Seconds of rest after which the next draft step finds cold caches and a slow clock."""


ENOUGH = 4  # target steps with a draft, and without, that tell what they cost each other
IDLE, BUSY = 0.1, 0.6  # shares of a target step


class SharedCores:
    """Estimates how much longer a target step takes while the draft computes, where both share a machine."""

    def __init__(self) -> None:
        self._alone, self._beside = IntervalEstimator(0.0), IntervalEstimator(0.0)

    @property
    def knows_alone(self) -> bool:
        """Whether target steps without the draft were seen."""
        return self._alone.num_samples >= ENOUGH

    @property
    def knows_both(self) -> bool:
        """Whether target steps without the draft and beside it were seen."""
        return self.knows_alone and self._beside.num_samples >= ENOUGH

    def sample(self, busy: float, seconds: float) -> None:
        """Book a target step of one row, during which the draft was busy for the share `busy`.

        A step that took no time tells nothing.
        """
        if seconds <= 0.0:
            return
        if busy <= IDLE:
            self._alone.sample(seconds)
        elif busy >= BUSY:
            self._beside.sample(seconds)

    def cost(self, step: float) -> float:
        """Return the seconds by which `step` seconds of drafting delay the verifier."""
        return step * max(0.0, 1.0 - self._alone.smoothed / self._beside.smoothed) if self.knows_both else 0.0

    def turn(self, seconds: float) -> float:
        """Return the turn without the draft, if it is `seconds` now."""
        return min(seconds, self._alone.smoothed) if self.knows_both else seconds


class DraftTimes:
    """Estimates the seconds of a draft step by rows, a level of the tree where a step buys several, and the
    seconds that reading committed tokens adds. One object per draft model."""

    def __init__(self) -> None:
        self.rows = WidthTimes(ROWS)
        self.reads = WidthTimes(READS)
        self.cores = SharedCores()

    def sample(self, rows: int, took: float, reading: ReadingTime, rested: float) -> bool:
        """Book a draft step of `rows` rows that took `took` seconds, after `rested` seconds of rest.

        Return whether the step measured the pace of rows alone.
        """
        if reading.num_tokens:
            self.reads.sample(reading.num_tokens, max(0.0, reading.seconds - self.rows.predict(rows)))
            return False
        if reading.has_dear_masks or rested > AFTER_REST or not rows or not reading.levels:
            return False
        self.rows.sample(rows, took / reading.levels)
        return True
