"""What a session counted on the edge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SessionStats:
    """Counts of one session, over all its streams. Times in seconds."""

    committed: int = 0  # tokens
    accepted: int = 0  # of those, proposed in time by the edge
    target_steps: int = 0  # commits: each is one target step
    evaluated: int = 0  # nodes the target evaluated, tips included
    proposed: int = 0  # nodes sent
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
