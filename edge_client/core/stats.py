"""What a session counted on the edge."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SessionStats:
    """Counts of one session, over all its streams. Times in seconds."""

    committed: int = 0  # tokens
    accepted: int = 0  # of those, proposed in time by the edge
    target_steps: int = 0  # commits: each is one target step
    evaluated: int = 0  # nodes the target evaluated, tips included
    proposed: int = 0  # nodes sent
    proposes: int = 0  # messages that carried them, or nothing but a nudge
    draft_steps: int = 0
    drafted: int = 0  # nodes the draft model evaluated
    resumes: int = 0  # streams after the first
    draft_time: float = 0.0  # spent in draft steps
    queue_time: float = 0.0  # the verifier's, as it reported
    compute_time: float = 0.0  # the verifier's, as it reported

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per target step (vLLM counts it so)."""
        return self.committed / self.target_steps if self.target_steps else 0.0


@dataclass(slots=True)
class StepTimes:
    """How long steps took, by their number of rows. Steps that read a prompt or a text have no place here."""

    counts: dict[int, int] = field(default_factory=dict)
    totals: dict[int, float] = field(default_factory=dict)  # seconds

    def add(self, rows: int, seconds: float) -> None:
        self.counts[rows] = self.counts.get(rows, 0) + 1
        self.totals[rows] = self.totals.get(rows, 0.0) + seconds
