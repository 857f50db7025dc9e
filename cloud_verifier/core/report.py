"""What a verifier tells of itself: totals since it began, and each step. Drivers make metrics and logs of
it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals. Each only grows."""

    num_opened: int = 0  # sessions admitted
    num_resumed: int = 0  # of them, those that had begun on another stream
    num_refused: dict[str, int] = field(default_factory=dict)  # by code: streams that never had a session
    num_finished: dict[str, int] = field(default_factory=dict)  # by reason, or by the code of an error
    num_prompt_tokens: int = 0  # of sessions admitted, what they had written before included
    num_cached_tokens: int = 0  # of them, those whose KV the prefix cache had
    num_steps: int = 0
    num_failed_steps: int = 0
    num_prefilled: int = 0  # prompt rows evaluated
    num_evaluated: int = 0  # nodes, tips included
    num_bare: int = 0  # tips evaluated with no draft below them
    num_committed: int = 0  # tokens
    num_server_made: int = 0  # of them, those that were not among the edge's nodes
    num_proposed: int = 0  # nodes that edges sent
    num_dropped: int = 0  # of them, those above the hard limit of their session
    num_drafts: int = 0  # draft rows evaluated, of edges and the verifier's own guesses
    num_won: int = 0  # of them, those that were right: tokens beyond one a step
    won_by_depth: list[int] = field(default_factory=list)  # [d]: steps in which more than d drafts were right

    def count_won(self, num_won: int) -> None:
        """So many drafts of one session were right in one step."""
        self.num_won += num_won
        self.won_by_depth += [0] * (num_won - len(self.won_by_depth))
        for depth in range(num_won):
            self.won_by_depth[depth] += 1


@dataclass(slots=True)
class Tally:
    """What one session has had on this stream, in the end and on the way. Times are absolute, in seconds."""

    opened_at: float
    resumed: bool  # it had begun on another stream
    num_cached: int = 0  # of the tokens that it came with, those whose KV the prefix cache had
    num_steps: int = 0  # in which its tip was evaluated
    num_rows: int = 0  # evaluated for it, prompt rows included
    num_drafts: int = 0  # of them, draft rows
    num_won: int = 0  # of the drafts, those that were right
    num_committed: int = 0  # tokens
    num_server_made: int = 0  # of them, those that were not among the edge's nodes
    num_preempted: int = 0  # times that it gave its KV up for others
    began_at: float | None = None  # its first step
    first_commit_at: float | None = None
    committed_at: float | None = None  # the newest

    def count_step(self, began_at: float, num_rows: int, num_drafts: int, num_tips: int) -> None:
        """It had these rows in a step that began then."""
        if self.began_at is None:
            self.began_at = began_at
        self.num_steps += num_tips
        self.num_rows += num_rows
        self.num_drafts += num_drafts

    def count_commit(self, num_tokens: int, num_won: int, num_server_made: int, now: float) -> None:
        """A step brought it so many tokens, at least one; `num_won` of its drafts were right."""
        if self.first_commit_at is None:
            self.first_commit_at = now
        self.committed_at = now
        self.num_committed += num_tokens
        self.num_won += num_won
        self.num_server_made += num_server_made


@dataclass(slots=True)
class Waits:
    """How long the sessions of one step had waited for the tokens that it brought, in seconds."""

    first: list[float] = field(default_factory=list)  # since the Open
    resumed: list[float] = field(default_factory=list)  # since an Open that went on with a text
    later: list[float] = field(default_factory=list)  # since the tokens before

    def add(self, tally: Tally, now: float) -> None:
        """This session's are there now. Before `Tally.count_commit`."""
        if tally.committed_at is not None:
            self.later.append(now - tally.committed_at)
        else:
            (self.resumed if tally.resumed else self.first).append(now - tally.opened_at)


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
    waits: Waits


def count(counts: dict[str, int], name: str) -> None:
    """One more of this name."""
    counts[name] = counts.get(name, 0) + 1
