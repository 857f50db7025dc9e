"""What is measured of a verifier beside the scheduler's own totals: distributions, and what crosses the wire.

The bounds of what has vLLM's names are vLLM's, so that its dashboards and alerts can be used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_verifier.core.report import StepReport, Tally
from cloud_verifier.telemetry.histogram import Histogram, one_two_five

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
TEXT_BOUNDS = one_two_five(1_000_000)
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

# Ours. A step of a large target takes tens of milliseconds; who is ready waits for the running one.
STEP_TIME_BOUNDS = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1,
    0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
QUEUE_TIME_BOUNDS = (0.0001, 0.0005, *STEP_TIME_BOUNDS)
ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
RATIO_BOUNDS = (0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


class Instruments:
    """Every distribution that is kept. Times in seconds."""

    def __init__(self) -> None:
        self.step_time = Histogram(STEP_TIME_BOUNDS)
        self.step_ratio = Histogram(RATIO_BOUNDS)
        self.step_rows = Histogram(ROW_BOUNDS)
        self.step_tips = Histogram(ROW_BOUNDS)
        self.step_tokens = Histogram(STEP_TOKEN_BOUNDS)
        self.queue_time = Histogram(QUEUE_TIME_BOUNDS)
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.resumed = Histogram(FIRST_TOKEN_BOUNDS)
        self.later_tokens = Histogram(LATER_TOKEN_BOUNDS)
        # Of each session that came to the end of its text.
        self.whole_time = Histogram(SESSION_BOUNDS)
        self.first_queue_time = Histogram(SESSION_BOUNDS)
        self.prefill_time = Histogram(SESSION_BOUNDS)
        self.decode_time = Histogram(SESSION_BOUNDS)
        self.prompt_tokens = Histogram(TEXT_BOUNDS)
        self.text_tokens = Histogram(TEXT_BOUNDS)

    def note_step(self, report: StepReport) -> None:
        """A step is done, and what it brought is on its way."""
        num_rows = report.num_tips + report.num_drafts + report.num_prefilled
        self.step_time.add(report.duration)
        if report.predicted > 0:
            self.step_ratio.add(report.duration / report.predicted)
        self.step_rows.add(num_rows)
        self.step_tips.add(report.num_tips)
        self.step_tokens.add(report.num_prefilled + report.num_committed)
        self.queue_time.add_all(report.queue_times)
        self.first_token.add_all(report.waits.first)
        self.resumed.add_all(report.waits.resumed)
        self.later_tokens.add_all(report.waits.later)

    def note_finished(self, tally: Tally, num_prompt_tokens: int, num_text_tokens: int, now: float) -> None:
        """A session has come to the end of its text."""
        self.whole_time.add(now - tally.opened_at)
        self.prompt_tokens.add(num_prompt_tokens)
        self.text_tokens.add(num_text_tokens)
        assert tally.began_at is not None, "it has come to its end here"
        assert tally.first_commit_at is not None, "with the newest of its tokens"
        self.first_queue_time.add(tally.began_at - tally.opened_at)
        self.prefill_time.add(tally.first_commit_at - tally.began_at)
        self.decode_time.add(now - tally.first_commit_at)

    def copy(self) -> Instruments:
        """As they stand now."""
        other = Instruments()
        for name, kept in vars(self).items():
            setattr(other, name, kept.copy())
        return other


@dataclass(slots=True)
class Wire:
    """Messages in one direction, and their serialised bytes: without gRPC's and HTTP/2's framing."""

    num_messages: dict[str, int] = field(default_factory=dict)  # by kind
    num_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, size: int) -> None:
        self.num_messages[kind] = self.num_messages.get(kind, 0) + 1
        self.num_bytes[kind] = self.num_bytes.get(kind, 0) + size

    def copy(self) -> Wire:
        return Wire(self.num_messages.copy(), self.num_bytes.copy())
