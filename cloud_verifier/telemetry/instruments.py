"""Measure a verifier beyond the scheduler's totals: distributions.

Histograms under vLLM's names have vLLM's bounds, so that its dashboards and alerts can be used.
An addition to a histogram takes a few hundred nanoseconds: every session of every step makes several.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from cloud_verifier.core.ledger import StepReport
from cloud_verifier.core.verify_session import SessionTally


class Histogram:
    """Counts values by `bounds` (increasing).

    `counts[i]` is the number of values in (bounds[i - 1], bounds[i]]; the last entry counts the values above
    all bounds. `total` is the sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, *values: float) -> None:
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1
        self.total += sum(values)

    def buckets(self) -> list[tuple[str, float]]:
        """Return the histogram in Prometheus' form: each bound as text, and the values up to it."""
        bounds = [str(float(bound)) for bound in self.bounds] + ["+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
LATER_TOKEN_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
SESSION_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TEXT_BOUNDS = (*(digit * 10**power for power in range(6) for digit in (1, 2, 5)), 1_000_000)
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

# Our own bounds. A step of a large target takes tens of milliseconds; ready sessions wait for it.
STEP_TIME_BOUNDS = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1,
    0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
QUEUE_TIME_BOUNDS = (0.0001, 0.0005, *STEP_TIME_BOUNDS)
RATIO_BOUNDS = (0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


class Instruments:
    """Holds the distributions of a verifier. Times are in seconds."""

    def __init__(self) -> None:
        self.step_time = Histogram(STEP_TIME_BOUNDS)
        self.step_ratio = Histogram(RATIO_BOUNDS)
        self.step_tokens = Histogram(STEP_TOKEN_BOUNDS)
        self.queue_time = Histogram(QUEUE_TIME_BOUNDS)
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.resumed = Histogram(FIRST_TOKEN_BOUNDS)
        self.later_tokens = Histogram(LATER_TOKEN_BOUNDS)
        # Of each session with a complete text.
        self.whole_time = Histogram(SESSION_BOUNDS)
        self.first_queue_time = Histogram(SESSION_BOUNDS)
        self.prefill_time = Histogram(SESSION_BOUNDS)
        self.decode_time = Histogram(SESSION_BOUNDS)
        self.prompt_tokens = Histogram(TEXT_BOUNDS)
        self.text_tokens = Histogram(TEXT_BOUNDS)

    def note_step(self, report: StepReport) -> None:
        self.step_time.add(report.duration)
        if report.predicted > 0:
            self.step_ratio.add(report.duration / report.predicted)
        self.step_tokens.add(report.num_prefilled + report.num_committed)
        self.queue_time.add(*report.queue_times)
        self.first_token.add(*report.waits.first)
        self.resumed.add(*report.waits.resumed)
        self.later_tokens.add(*report.waits.later)

    def note_finished(
        self, tally: SessionTally, num_prompt_tokens: int, num_text_tokens: int, now: float
    ) -> None:
        self.whole_time.add(now - tally.opened_at)
        self.prompt_tokens.add(num_prompt_tokens)
        self.text_tokens.add(num_text_tokens)
        assert tally.began_at is not None, "the session has ended in a step"
        assert tally.first_commit_at is not None, "the session has committed tokens"
        self.first_queue_time.add(tally.began_at - tally.opened_at)
        self.prefill_time.add(tally.first_commit_at - tally.began_at)
        self.decode_time.add(now - tally.first_commit_at)
