"""What a verifier tells of itself: totals since it began, and each step. Drivers make metrics and logs of
it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals. Each only grows."""

    num_opened: int = 0  # sessions admitted
    num_refused: dict[str, int] = field(default_factory=dict)  # by code: Opens that were not
    num_finished: dict[str, int] = field(default_factory=dict)  # by reason, or by the code of an error
    num_prompt_tokens: int = 0  # of sessions admitted, what they had written before included
    num_cached_tokens: int = 0  # of them, those whose KV the prefix cache had
    num_steps: int = 0
    num_failed_steps: int = 0
    num_prefilled: int = 0  # prompt rows evaluated
    num_evaluated: int = 0  # nodes, tips included
    num_committed: int = 0  # tokens
    num_proposed: int = 0  # nodes that edges sent
    num_drafts: int = 0  # draft rows evaluated, of edges and the verifier's own guesses
    num_won: int = 0  # of them, those that were right: tokens beyond one a step
    won_by_depth: list[int] = field(default_factory=list)  # [d]: steps in which more than d drafts were right

    def count_won(self, num_won: int) -> None:
        """So many drafts of one session were right in one step."""
        self.num_won += num_won
        self.won_by_depth += [0] * (num_won - len(self.won_by_depth))
        for depth in range(num_won):
            self.won_by_depth[depth] += 1


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. Times in seconds."""

    began_at: float
    duration: float
    queue_times: tuple[float, ...]  # of each session in it: how long it was ready before
    num_tips: int
    num_drafts: int
    num_prefilled: int
    num_reads: int  # KV slots read, as the cost model counts them
    num_committed: int
    predicted: float  # what the cost model had expected of its duration


def count(counts: dict[str, int], name: str) -> None:
    """One more of this name."""
    counts[name] = counts.get(name, 0) + 1
