"""Predict the duration of a step: seconds = (fixed + per_row * rows + per_read * reads) * factor[rows].

In a mixture of experts the first rows are dear, since each makes the step read the weights of other experts.
Later rows find their experts awake. So there `rows` is the number of experts that rows wake, as a multiple of
those that one row wakes: (1 - (1 - share)**rows) / share, if all experts are equally likely.

All four are learnt from the steps themselves. On a GPU each factor stays near 1. A CPU needs the factors: in
float32 a second row can take as long as the first, and the next eight rows no time.

An engine may pad its steps to *buckets* (`TargetInfo.row_buckets`), so a bucket's steps take the same time,
however few rows they have. Then rows are counted as padded, and each bucket has a factor of its own.

A *read* is one KV slot read for one tile of rows. In the reference backend each row reads all of its context;
a kernel that holds several rows reads the context once for all of them (`TargetInfo.rows_per_read`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from common.errors import LocalError
from common.estimators import WidthTimes

FARTHEST = 4.0
"""Most that the table counts a step as slower or faster than the line; limits the effect of one outlier."""

TRIED = 2.0  # steps, fading, from which on a width's measured time is trusted, however long


class StepCost:
    """Fits the line by least squares over fading sums, without negative parts, and a table of factors.

    Old samples halve every `half_life` steps. The slopes move towards the fit only as far as rows and reads
    have varied, each in its own scale. Where all steps are alike, only the fixed part is learnt. The method
    is that of `common.estimators.LinearTimeEstimator`, with a second slope.

    The table holds how far steps of a width lie above or below the line, relative to other widths. The line
    follows changes of speed. The table's samples fade, too.
    """

    DAMPING = 1.0  # variance, in squares of the scale, at which the fit weighs half
    SCALES = (1.0, 256.0)  # rows and reads: a small change of each

    def __init__(
        self,
        fixed: float = 0.030,
        per_row: float = 0.01,
        per_read: float = 0.0,
        half_life: float = 50.0,
        buckets: Sequence[int] = (),
        expert_share: float = 0.0,
    ) -> None:
        self._sleeping = 1.0 - expert_share  # share of experts that one row leaves alone
        self.fixed, self.per_row, self.per_read = fixed, per_row, per_read  # seconds
        self.num_samples = 0
        self._fade = 0.5 ** (1 / half_life)
        self._weight = 0.0
        self._rows = self._reads = self._time = 0.0  # means
        self._rows_rows = self._rows_reads = self._reads_reads = 0.0  # centred moments, in scales
        self._rows_time = self._reads_time = 0.0
        self._buckets = buckets  # rising
        self._table = WidthTimes({1: 1.0}, half_life, buckets)
        self._factors = list[float]()  # the table read out, by rows; empty when it has changed

    def sample(self, rows: int, reads: float, duration: float, num_prompt: int = 0) -> float:
        """Learn from a step of `duration` seconds, `num_prompt` of whose rows are prompts'.
        Return the predicted seconds. Raises `LocalError` for impossible values."""
        if not (rows >= 0 and reads >= 0 and 0 <= duration < math.inf):
            raise LocalError(f"a step of {rows} rows and {reads} reads cannot have taken {duration} s")
        predicted = self.predict_all(rows - num_prompt, num_prompt, reads)
        rows = self.padded(rows)
        self.num_samples += 1
        old = self._weight * self._fade
        self._weight = old + 1.0
        off_rows, off_reads, off_time = (
            self._wakened(rows) - self._rows,
            reads - self._reads,
            duration - self._time,
        )
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
        line = self.fixed + self.more(rows, reads)
        if rows >= 1 and line > 0:
            self._table.sample(rows, min(max(duration / line, 1 / FARTHEST), FARTHEST))
            self._factors = []
        return predicted

    def predict(self, rows: int, reads: float, beside: int = 0) -> float:
        """Return the seconds that such a step will take.

        `beside` are rows of prompts in the same step. Their own time is left out; they fill its bucket.
        """
        width = rows
        if self._buckets:
            rows = self.padded(rows + beside)
            width = rows - beside
        if rows >= len(self._factors):
            self._read_table(rows)
        line = self.fixed + self.per_row * self._wakened(width) + self.per_read * reads
        return line * self._factors[rows]

    def predict_all(self, rows: int, num_prompt: int, reads: float) -> float:
        """Return the seconds of a step of `rows` nodes and `num_prompt` rows of prompts."""
        return self.predict(rows + num_prompt, reads)

    def padded(self, rows: int) -> int:
        """Return the rows of the bucket that holds so many: themselves if there is none."""
        at = bisect_left(self._buckets, rows)
        return self._buckets[at] if rows and at < len(self._buckets) else rows

    def more(self, rows: float, reads: float) -> float:
        """Return the seconds by which rows and reads make a step longer, by the line alone."""
        return self.per_row * self._wakened(rows) + self.per_read * reads

    def tried(self, rows: int, beside: int = 0) -> bool:
        """Return whether steps of about `rows` rows were seen lately; `beside` as in `predict`."""
        return self._table.weight(self.padded(rows + beside) if self._buckets else rows) >= TRIED

    def _wakened(self, rows: float) -> float:
        """Return the rows as multiples of the experts that one row wakes; without experts, the rows."""
        return rows if self._sleeping == 1.0 else (1.0 - self._sleeping**rows) / (1.0 - self._sleeping)

    def _read_table(self, rows: int) -> None:
        most = 2 * max(rows, 32)
        places = [*(self._buckets or range(1, WidthTimes.EXACT + 1))]
        while places[-1] < most:
            places.append(2 * places[-1])
        factors = [self._table.relative(place) for place in places]
        widths = np.arange(most + 1)
        if self._buckets:
            self._factors = np.array(factors)[np.searchsorted(places, widths)].tolist()
        else:
            self._factors = np.interp(widths, places, factors).tolist()

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
        # The plane passes through the mean of the samples and is nowhere negative.
        per_row, per_read = row / self.SCALES[0], read / self.SCALES[1]
        explained = per_row * self._rows + per_read * self._reads
        if explained > self._time:
            shrink = self._time / explained
            per_row, per_read, explained = per_row * shrink, per_read * shrink, self._time
        self.per_row, self.per_read = per_row, per_read
        self.fixed = self._time - explained


class MeasuredStepCost(StepCost):
    """Knows what steps of so many nodes take, from times that the engine has measured
    (`TargetInfo.row_times`).

    No line describes these times: four rows may be cheaper than three, and a prompt's rows much cheaper than
    nodes. So nodes have a table, which is corrected by the steps without prompts, and the line is left to
    prompts.
    """

    def __init__(self, times: Sequence[tuple[int, float]], half_life: float = 50.0) -> None:
        """Take rows and seconds, both above 0."""
        super().__init__(half_life=half_life)
        self._nodes = WidthTimes(dict(times), half_life)
        self._nodes.measured(dict(times))

    def sample(self, rows: int, reads: float, duration: float, num_prompt: int = 0) -> float:
        predicted = super().sample(rows, reads, duration, num_prompt)
        if not num_prompt:
            self._nodes.sample(rows, duration)
        return predicted

    def predict(self, rows: int, reads: float, beside: int = 0) -> float:
        return self._nodes.predict(rows)

    def predict_all(self, rows: int, num_prompt: int, reads: float) -> float:
        prompts = self.more(num_prompt, 0) + (0.0 if rows else self.fixed)
        return self._nodes.predict(rows) + (prompts if num_prompt else 0.0)

    def tried(self, rows: int, beside: int = 0) -> bool:
        return True
