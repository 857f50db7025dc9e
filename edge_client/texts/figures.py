"""The figures of a text: the same numbers in the response, the metrics and the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any, Protocol

from common.messages import FinishReason
from edge_client.core.effects import Mode, SessionStats, Shown, Traffic
from edge_client.formats.detokenizer import TokenOrigin


@dataclass(frozen=True, slots=True)
class TextFigures:
    """Holds one text's figures. Times are in milliseconds, by the client's wall clock unless noted.

    `elapsed_ms`, `first_token_ms` and `waited_ms` begin when the request arrives. `step_ms` and `queue_ms`
    are the verifier's own figures, summed over the target steps. `other_ms` is the rest of the text's time.
    `draft_ms` is the time in draft steps, which run in parallel.
    """

    mode: str  # at the end: ahead, server-only or device-only
    cached: int = 0  # tokens of the prompt that the verifier had in its prefix cache
    tokens: int = 0  # of the text
    accepted: int = 0  # tokens proposed in time by this device
    device_tokens: int = 0  # tokens by the draft model alone, without a verifier
    draft_read: int = 0  # tokens of the prompt and of the text that the draft model evaluated
    proposed: int = 0  # sent to the verifier
    wasted: int = 0  # proposed and not accepted
    draft_steps: int = 0
    drafted: int = 0  # rows of the draft model
    target_steps: int = 0
    evaluated: int = 0  # rows of the target, tips included
    acceptance_length: float = 0.0  # tokens by the target per target step
    acceptance_rate: float = 0.0  # accepted of proposed
    elapsed_ms: float = 0.0
    waited_ms: float = 0.0  # of that, until the text begins: the prompt in tokens, the daemon's queue
    first_token_ms: float = 0.0
    draft_ms: float = 0.0
    queue_ms: float = 0.0
    step_ms: float = 0.0
    other_ms: float = 0.0  # network, waits, and a draft that works while nothing else does
    rtt_p50_ms: float = 0.0  # 0: not measured
    bytes_up: int = 0
    bytes_down: int = 0
    resumes: int = 0  # streams after the first
    estimated_speedup: float = 0.0  # over streaming from the same server; 0: unknown

    def as_json(self) -> dict[str, Any]:
        """Return the figures, rounded to microseconds or thousandths."""
        told = asdict(self).items()
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in told}


class SessionRun(Protocol):
    """Presents a session under way or the draft model alone (`Generation`, `AloneRun`)."""

    traffic: Traffic
    reason: FinishReason | None

    @property
    def stats(self) -> SessionStats: ...

    @property
    def verifier(self) -> str: ...  # of the newest stream, HOST:PORT; empty if there is none

    @property
    def rtts(self) -> Sequence[float]: ...  # round trips measured, the newest last; seconds

    @property
    def streaming_time(self) -> float: ...  # seconds per token without drafts; 0: not measured

    def shown(self) -> AsyncGenerator[Shown]: ...


@dataclass(slots=True)
class TextAccount:
    """Collects a text's figures while it is written, over all its sessions. Times in seconds."""

    asked_at: float  # when the client's request arrived
    began_at: float = 0.0  # when it left the daemon's queue
    mode: str = Mode.AHEAD.value
    why: str = ""  # of the mode, in words, once it has changed
    tokens: int = 0
    device_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    num_left: int = 0  # ended sessions
    traffic: Traffic = field(default_factory=Traffic)  # of ended sessions

    def wrote(self, origin: TokenOrigin, now: float) -> None:
        """Count one more token of text."""
        self.tokens += 1
        self.device_tokens += origin is TokenOrigin.DEVICE
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now

    def left(self, session: SessionRun) -> None:
        """Count an ended session."""
        self.num_left += 1
        self.traffic.up += session.traffic.up
        self.traffic.down += session.traffic.down

    def figures(self, stats: SessionStats, newest: SessionRun | None, now: float) -> TextFigures:
        """Return the figures now. `stats` are of all the text's sessions."""
        elapsed, waited = (self.last_at or now) - self.asked_at, max(0.0, self.began_at - self.asked_at)
        rtts = newest.rtts if newest is not None else ()
        return TextFigures(
            mode=self.mode,
            cached=stats.cached,
            tokens=self.tokens,
            accepted=stats.accepted,
            device_tokens=self.device_tokens,
            draft_read=stats.read,
            proposed=stats.proposed,
            wasted=max(0, stats.proposed - stats.accepted),
            draft_steps=stats.draft_steps,
            drafted=stats.drafted,
            target_steps=stats.target_steps,
            evaluated=stats.evaluated,
            acceptance_length=stats.acceptance_length,
            acceptance_rate=stats.accepted / stats.proposed if stats.proposed else 0.0,
            elapsed_ms=elapsed * 1e3,
            waited_ms=waited * 1e3,
            first_token_ms=((self.first_at or now) - self.asked_at) * 1e3,
            draft_ms=stats.draft_time * 1e3,
            queue_ms=stats.queue_time * 1e3,
            step_ms=stats.compute_time * 1e3,
            other_ms=max(0.0, elapsed - waited - stats.queue_time - stats.compute_time) * 1e3,
            rtt_p50_ms=median(rtts) * 1e3 if rtts else 0.0,
            bytes_up=self.traffic.up,
            bytes_down=self.traffic.down,
            resumes=stats.resumes + max(0, self.num_left - 1),
            estimated_speedup=self._speedup(newest.streaming_time if newest is not None else 0.0),
        )

    def _speedup(self, streaming_time: float) -> float:
        """Return streaming's estimated time for the tokens after the first over their real time."""
        if self.first_at is None or self.last_at is None or self.device_tokens:
            return 0.0
        took = self.last_at - self.first_at
        return (self.tokens - 1) * streaming_time / took if took > 0 else 0.0


def add_up(parts: Sequence[SessionStats]) -> SessionStats:
    """Return the sum of the statistics of one text's sessions."""
    names = [each.name for each in fields(SessionStats)]
    return SessionStats(**{name: sum(getattr(part, name) for part in parts) for name in names})


SUMMED = (
    *("tokens", "accepted", "device_tokens", "proposed", "wasted", "target_steps"),
    *("elapsed_ms", "waited_ms", "draft_ms", "queue_ms", "step_ms", "other_ms"),
    *("bytes_up", "bytes_down", "resumes"),
)
"""Names of the additive figures of a text."""


@dataclass(slots=True)
class Totals:
    """Sums the figures of ended texts."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0.0))
    ended: dict[str, int] = field(default_factory=dict)  # texts, by why they ended

    def add(self, figures: TextFigures, reason: str) -> None:
        """Count one more text, which ended for this reason."""
        for name in SUMMED:
            self.sums[name] += getattr(figures, name)
        self.ended[reason] = self.ended.get(reason, 0) + 1
