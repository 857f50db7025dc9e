"""Count the results of steps and sessions for metrics, logs and views. The counts decide nothing.

They are updated by `VerifyScheduler.report`, while the engine already runs the next step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from cloud_verifier.core.engine_protocol import FloatArray, RowLogprobs
from cloud_verifier.core.verify_session import SessionTally, StepProgress, VerifySession
from common.estimators import IntervalEstimator


@dataclass(slots=True)
class VerifierCounters:
    """Holds the totals of a verifier. Each only grows."""

    num_opened: int = 0  # sessions admitted
    num_resumed: int = 0  # of them, sessions that had begun on another stream
    num_refused: Counter[str] = field(default_factory=Counter)  # by code: streams that never had a session
    num_finished: Counter[str] = field(default_factory=Counter)  # by reason, or by the code of an error
    num_prompt_tokens: int = 0  # of sessions admitted, with the committed tokens of resumed sessions
    num_cached_tokens: int = 0  # of them, tokens whose KV was in the prefix cache
    num_steps: int = 0
    num_failed_steps: int = 0
    num_prefilled: int = 0  # prompt rows evaluated
    num_evaluated: int = 0  # nodes, tips included
    num_bare: int = 0  # tips evaluated with no draft below them
    num_committed: int = 0  # tokens
    num_server_made: int = 0  # of them, tokens that were not among the edge's nodes
    num_dropped: int = 0  # nodes of edges above the hard limit of their session
    num_drafts: int = 0  # draft rows evaluated, of edges and the verifier's own guesses
    num_won: int = 0  # of them, accepted rows: tokens beyond one a step
    num_guessed: int = 0  # nodes that only the engine's own drafter proposed
    num_guesses_won: int = 0  # tokens that steps wrote more because of them
    won_by_depth: list[int] = field(default_factory=list)  # [d]: steps in which more than d drafts were right

    def count_won(self, num_won: int) -> None:
        """Count the accepted drafts of one session in one step."""
        self.num_won += num_won
        self.won_by_depth += [0] * (num_won - len(self.won_by_depth))
        for depth in range(num_won):
            self.won_by_depth[depth] += 1


@dataclass(slots=True)
class Waits:
    """Holds the waits of one step's sessions for their new tokens, in seconds."""

    first: list[float] = field(default_factory=list)  # since the Open
    resumed: list[float] = field(default_factory=list)  # since an Open that went on with a text
    later: list[float] = field(default_factory=list)  # since the tokens before

    def add(self, tally: SessionTally, now: float) -> None:
        """Note the wait of one session. Call it before `SessionTally.count_commit`."""
        if tally.committed_at is not None:
            self.later.append(now - tally.committed_at)
        else:
            (self.resumed if tally.resumed else self.first).append(now - tally.opened_at)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Holds the figures of one step. Times are in seconds."""

    began_at: float
    duration: float
    queue_times: tuple[float, ...]  # of each session: the time from ready to the step's begin
    num_tips: int
    num_drafts: int
    num_prefilled: int
    num_committed: int
    predicted: float  # the duration that the cost model had predicted
    waits: Waits


@dataclass(frozen=True, slots=True)
class Running:
    sessions: dict[int, VerifySession]  # in the order of the plan's items
    began_at: float
    num_rows: int
    num_reads: int
    num_prefilled: int
    spared: Mapping[int, float]  # see `StepDraft`


@dataclass(frozen=True, slots=True)
class StepDone:
    step: Running
    ended_at: float
    reported_at: float  # when the scheduler was informed
    predicted: float  # the predicted duration, seconds
    parts: Sequence[StepProgress]
    margins: Sequence[FloatArray]  # of each part, as in `StepResult`
    logprobs: Sequence[RowLogprobs | None] = ()  # of each part, or empty, as there

    @property
    def duration(self) -> float:
        return self.ended_at - self.step.began_at


class NearTies:
    """Counts near ties of committed choices, over all sessions since the verifier began.

    A margin is the choice's score minus the runner-up's, in logits. Under sampling the scores are logits over
    the temperature plus noise, so a margin times the temperature is the change of a logit that turns the
    choice. Choices of rejected draft rows do not count. Neither do candidates removed by a filter (top-k,
    top-p, min-p), although rounding may also move a filter's edge.
    """

    def __init__(self, near_tie: float) -> None:
        self.near_tie = near_tie  # logits below which rounding could turn a choice
        self.num_near_ties = 0
        self.smallest = math.inf

    def note(self, margins: FloatArray, temperature: float) -> None:
        """Count the `margins` of committed choices of one session, any number, as in `StepResult`."""
        for scaled in margins.tolist():
            margin = scaled * temperature if temperature > 0.0 else scaled
            self.num_near_ties += margin < self.near_tie
            self.smallest = min(self.smallest, margin)


class Ledger:
    """Holds one verifier's totals since it began, and its newest step. `near_tie` as in `NearTies`."""

    def __init__(self, near_tie: float) -> None:
        self.counters = VerifierCounters()
        self.near_ties = NearTies(near_tie)
        self.last_step: StepReport | None = None
        self.turn = IntervalEstimator(0.0)  # of a session in a step: its queue time and the step

    def enter(self, done: StepDone) -> None:
        step, counters, waits = done.step, self.counters, Waits()
        before = counters.num_committed
        for part, margins in zip(done.parts, done.margins, strict=True):
            if part.lost:
                continue
            tally, num_drafts = part.session.tally, part.num_drafts
            num_won, num_tokens = part.num_won, len(part.tokens)
            temperature = part.session.request.sampling.temperature
            self.near_ties.note(margins[part.outputs] if num_drafts else margins[:num_tokens], temperature)
            tally.count_step(step.began_at, part.num_rows, num_drafts, part.num_outputs - num_drafts)
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
                waits.add(tally, done.reported_at)
                tally.count_commit(num_tokens, num_won, num_server_made, done.reported_at)
        counters.num_steps += 1
        counters.num_prefilled += step.num_prefilled
        queue_times = tuple(max(0.0, step.began_at - part.ready_at) for part in done.parts)
        if queue_times:
            self.turn.sample(fmean(queue_times) + done.duration)
        num_tips = sum(1 for part in done.parts if part.num_outputs)
        self.last_step = StepReport(
            began_at=step.began_at,
            duration=done.duration,
            queue_times=queue_times,
            num_tips=num_tips,
            num_drafts=step.num_rows - step.num_prefilled - num_tips,
            num_prefilled=step.num_prefilled,
            num_committed=counters.num_committed - before,
            predicted=done.predicted,
            waits=waits,
        )
