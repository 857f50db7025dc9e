"""What a step costs: seconds = (fixed + per_row * rows + per_read * reads) * factor of its rows.

All four are learnt from the steps themselves. The factors are a table by rows. A GPU needs none: each stays
near 1. A processor does: in float32 a second row can take as long as the first, and the next eight nothing.

A *read* is one KV slot read for one tile of rows: a row of the reference backend reads all of its context, a
kernel that holds several rows at a time reads it once for all of them (`TargetInfo.rows_per_read`).
"""

from __future__ import annotations

import math

import numpy as np

from common.errors import LocalError
from common.estimators import WidthTimes

Cost = tuple[float, float]
"""What is added to a step: rows, and reads."""

FARTHEST = 4.0
"""A step's time over or under the line, at most, as the table takes it: one hiccup is not believed whole."""

TRIED = 2.0  # steps, fading, from which on a width's own time is believed however dear


class StepCost:
    """Fits line and table. Least squares over fading sums give the line; no part of it is negative.

    Old samples halve every `half_life` steps. The slopes move from their last values towards the fit only as
    far as rows and reads have varied, each in its own scale: where every step is alike, only the fixed part
    is learnt. As `common.estimators.LinearTimeEstimator`, with a second slope.

    The table holds how far steps of a width lie above or below the line, compared with the others: a change
    of speed is the line's affair. Its evidence fades, too.
    """

    DAMPING = 1.0  # variance, in squares of the scale, at which the fit weighs half
    SCALES = (1.0, 256.0)  # rows, and reads that are likewise little

    def __init__(
        self, fixed: float = 0.030, per_row: float = 0.01, per_read: float = 0.0, half_life: float = 50.0
    ) -> None:
        self.fixed, self.per_row, self.per_read = fixed, per_row, per_read  # seconds
        self.num_samples = 0
        self._fade = 0.5 ** (1 / half_life)
        self._weight = 0.0
        self._rows = self._reads = self._time = 0.0  # means
        self._rows_rows = self._rows_reads = self._reads_reads = 0.0  # centred moments, in scales
        self._rows_time = self._reads_time = 0.0
        self._table = WidthTimes({1: 1.0}, half_life)
        self._factors = list[float]()  # the table read out, by rows; empty when it has changed

    def sample(self, rows: float, reads: float, duration: float) -> None:
        """A step of so many rows and reads took `duration` seconds. Raises `LocalError` for what cannot
        be."""
        if not (rows >= 0 and reads >= 0 and 0 <= duration < math.inf):
            raise LocalError(f"a step of {rows} rows and {reads} reads cannot have taken {duration} s")
        self.num_samples += 1
        old = self._weight * self._fade
        self._weight = old + 1.0
        off_rows, off_reads, off_time = rows - self._rows, reads - self._reads, duration - self._time
        self._rows += off_rows / self._weight
        self._reads += off_reads / self._weight
        self._time += off_time / self._weight
        share = old / self._weight
        x, y = off_rows / self.SCALES[0], off_reads / self.SCALES[1]
        self._rows_rows = self._rows_rows * self._fade + share * x * x
        self._rows_reads = self._rows_reads * self._fade + share * x * y
        self._reads_reads = self._reads_reads * self._fade + share * y * y
        self._rows_time = self._rows_time * self._fade + share * x * off_time
        self._reads_time = self._reads_time * self._fade + share * y * off_time
        self._fit()
        line = self._line(rows, reads)
        if rows >= 1 and line > 0:
            self._table.sample(rows, min(max(duration / line, 1 / FARTHEST), FARTHEST))
            self._factors = []

    def predict(self, rows: int, reads: float) -> float:
        """Seconds that such a step will take."""
        if rows >= len(self._factors):
            self._read_table(rows)
        return (self.fixed + self.per_row * rows + self.per_read * reads) * self._factors[rows]

    def more(self, rows: float, reads: float) -> float:
        """Seconds by which these make a step longer, by the line alone."""
        return self.per_row * rows + self.per_read * reads

    def tried(self, rows: int) -> bool:
        """Whether steps of about so many rows were seen lately."""
        return self._table.weight(rows) >= TRIED

    def _line(self, rows: float, reads: float) -> float:
        return self.fixed + self.per_row * rows + self.per_read * reads

    def _read_table(self, rows: int) -> None:
        """Read out the factors of up to `rows` rows and some more."""
        most = 2 * max(rows, 32)
        places = [*range(1, WidthTimes.EXACT + 1)]
        while places[-1] < most:
            places.append(2 * places[-1])
        factors = [self._table.relative(place) for place in places]
        self._factors = np.interp(np.arange(most + 1), places, factors).tolist()

    def _fit(self) -> None:
        a, b = self._rows_rows + self.DAMPING, self._reads_reads + self.DAMPING
        x = self._rows_time + self.DAMPING * self.per_row * self.SCALES[0]
        y = self._reads_time + self.DAMPING * self.per_read * self.SCALES[1]
        both = self._rows_reads
        spread = a * b - both * both  # above 0: the moments are a Gram matrix, and damped
        row, read = (x * b - y * both) / spread, (y * a - x * both) / spread
        if row < 0:
            row, read = 0.0, max(0.0, y / b)
        elif read < 0:
            row, read = max(0.0, x / a), 0.0
        self._take(row / self.SCALES[0], read / self.SCALES[1])

    def _take(self, per_row: float, per_read: float) -> None:
        """The plane goes through the mean of what was seen, and through nothing negative."""
        explained = per_row * self._rows + per_read * self._reads
        if explained > self._time:
            shrink = self._time / explained
            per_row, per_read, explained = per_row * shrink, per_read * shrink, self._time
        self.per_row, self.per_read = per_row, per_read
        self.fixed = self._time - explained
