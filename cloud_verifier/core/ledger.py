"""The books: what steps brought and to whom, for metrics, logs and views. Nothing is decided by them.

So they are written when effects are taken, which a driver does while the engine has its next step already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from cloud_verifier.core.margins import MarginCounter
from cloud_verifier.core.report import Counters, StepReport, Waits
from cloud_verifier.core.session import Progress, VerifySession
from cloud_verifier.core.target import FloatArray, RowLogprobs
from common.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Running:
    """The step that the engine has."""

    sessions: dict[int, VerifySession]  # in the order of the plan's items
    began_at: float
    num_rows: int
    num_reads: int
    num_prefilled: int
    spared: Mapping[int, float]  # see `Batch`


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step that is over."""

    step: Running
    ended_at: float
    told_at: float  # when the scheduler heard of it
    predicted: float  # seconds that it should have taken
    parts: Sequence[Progress]
    margins: Sequence[FloatArray]  # of each part, as in `StepResult`
    logprobs: Sequence[RowLogprobs | None] = ()  # of each part, or empty, as there

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.ended_at - self.step.began_at

    def commits(self) -> Iterator[tuple[Progress, tuple[TokenLogprobs, ...]]]:
        """The parts that brought tokens, and what is told of these."""
        for part, rows in zip(self.parts, self.logprobs or repeat(None), strict=False):
            if part.tokens:
                yield part, () if rows is None else rows.of(part.outputs)


class Ledger:
    """Totals of one verifier since it began, and its newest step. `near_tie` as in `MarginCounter`."""

    def __init__(self, near_tie: float) -> None:
        self.counters = Counters()
        self.margins = MarginCounter(near_tie)
        self.last_step: StepReport | None = None

    def enter(self, done: StepDone) -> None:
        """Write down a step."""
        step, counters, waits = done.step, self.counters, Waits()
        before = counters.num_committed
        for part, margins in zip(done.parts, done.margins, strict=True):
            if not part.lost:
                self._enter(part, margins, done, waits)
        counters.num_steps += 1
        counters.num_prefilled += step.num_prefilled
        num_tips = sum(1 for part in done.parts if part.num_outputs)
        self.last_step = StepReport(
            began_at=step.began_at,
            duration=done.duration,
            queue_times=tuple(max(0.0, step.began_at - part.ready_at) for part in done.parts),
            num_tips=num_tips,
            num_drafts=step.num_rows - step.num_prefilled - num_tips,
            num_prefilled=step.num_prefilled,
            num_reads=step.num_reads,
            num_committed=counters.num_committed - before,
            predicted=done.predicted,
            waits=waits,
        )

    def _enter(self, part: Progress, margins: FloatArray, done: StepDone, waits: Waits) -> None:
        """One session's part."""
        counters, tally = self.counters, part.session.tally
        num_drafts, num_won, num_tokens = part.num_drafts, part.num_won, len(part.tokens)
        temperature = part.session.request.sampling.temperature
        self.margins.note(margins[part.outputs] if num_drafts else margins[:num_tokens], temperature)
        tally.count_step(done.step.began_at, part.num_rows, num_drafts, part.num_outputs - num_drafts)
        counters.num_evaluated += part.num_outputs
        counters.num_committed += num_tokens
        if num_drafts:
            counters.num_drafts += num_drafts
            counters.count_won(num_won)
        else:
            counters.num_bare += part.num_outputs
        if num_tokens:
            num_server_made = part.server_made.bit_count()
            counters.num_server_made += num_server_made
            waits.add(tally, done.told_at)
            tally.count_commit(num_tokens, num_won, num_server_made, done.told_at)
