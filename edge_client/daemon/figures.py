"""What is told about a text beside its words: the same numbers in the response, the metrics and the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any, Protocol

from edge_client.core.policies.governor import Mode
from edge_client.core.stats import SessionStats
from edge_client.generation import Traffic
from edge_client.text import Origin


@dataclass(frozen=True, slots=True)
class TextFigures:
    """One text's. Times in milliseconds, of the client's wall clock if nothing else is said.

    `step_ms` and `queue_ms` are the verifier's own figures, summed over the target steps; `network_ms` is
    what is left of the text's time; `draft_ms`, which runs beside them, is the time in draft steps.
    """

    mode: str  # who wrote at the end: ahead, server-only or device-only
    tokens: int = 0  # of the text
    accepted: int = 0  # of them, proposed in time by this device
    device_tokens: int = 0  # of them, by the draft model alone while no verifier was there
    proposed: int = 0  # sent to the verifier
    wasted: int = 0  # of those, not accepted
    target_steps: int = 0
    acceptance_length: float = 0.0  # tokens by the target per target step
    acceptance_rate: float = 0.0  # accepted of proposed
    elapsed_ms: float = 0.0
    waited_ms: float = 0.0  # in the daemon's own queue, before that
    first_token_ms: float = 0.0
    draft_ms: float = 0.0
    queue_ms: float = 0.0
    step_ms: float = 0.0
    network_ms: float = 0.0
    rtt_p50_ms: float = 0.0  # 0: not measured
    bytes_up: int = 0
    bytes_down: int = 0
    resumes: int = 0  # streams after the first
    estimated_speedup: float = 0.0  # over streaming from the same server; 0: not known

    def as_json(self) -> dict[str, Any]:
        """Rounded for people: microseconds of a millisecond figure, thousandths of a ratio."""
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


class Measured(Protocol):
    """What a session tells beside its text."""

    traffic: Traffic

    @property
    def rtts(self) -> Sequence[float]: ...

    @property
    def streaming_time(self) -> float: ...


@dataclass(slots=True)
class Account:
    """Collects a text's figures while it is written, over all its sessions. Times in seconds."""

    asked_at: float  # when the client's request came
    began_at: float = 0.0  # when it left the daemon's queue
    mode: str = Mode.AHEAD.value
    why: str = ""  # of the mode, in words, once it has changed
    tokens: int = 0
    device_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    num_left: int = 0  # sessions that are over
    traffic: Traffic = field(default_factory=Traffic)  # of those

    def wrote(self, origin: Origin, now: float) -> None:
        """One more token of text."""
        self.tokens += 1
        self.device_tokens += origin is Origin.DEVICE
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now

    def left(self, session: Measured) -> None:
        """It is over, its last message sent."""
        self.num_left += 1
        self.traffic.up += session.traffic.up
        self.traffic.down += session.traffic.down

    def figures(self, stats: SessionStats, newest: Measured | None, now: float) -> TextFigures:
        """As it stands. `stats` are of all its sessions."""
        elapsed = (self.last_at or now) - self.began_at
        rtts = newest.rtts if newest is not None else ()
        return TextFigures(
            mode=self.mode,
            tokens=self.tokens,
            accepted=stats.accepted,
            device_tokens=self.device_tokens,
            proposed=stats.proposed,
            wasted=max(0, stats.proposed - stats.accepted),
            target_steps=stats.target_steps,
            acceptance_length=stats.acceptance_length,
            acceptance_rate=stats.accepted / stats.proposed if stats.proposed else 0.0,
            elapsed_ms=elapsed * 1e3,
            waited_ms=max(0.0, self.began_at - self.asked_at) * 1e3,
            first_token_ms=((self.first_at or now) - self.began_at) * 1e3,
            draft_ms=stats.draft_time * 1e3,
            queue_ms=stats.queue_time * 1e3,
            step_ms=stats.compute_time * 1e3,
            network_ms=max(0.0, elapsed - stats.queue_time - stats.compute_time) * 1e3,
            rtt_p50_ms=median(rtts) * 1e3 if rtts else 0.0,
            bytes_up=self.traffic.up,
            bytes_down=self.traffic.down,
            resumes=stats.resumes + max(0, self.num_left - 1),
            estimated_speedup=self._speedup(newest.streaming_time if newest is not None else 0.0),
        )

    def _speedup(self, streaming_time: float) -> float:
        """What streaming would have taken for the tokens after the first, a step of one row each by the
        verifier's own pace, over what they took."""
        if self.first_at is None or self.last_at is None or self.device_tokens:
            return 0.0
        took = self.last_at - self.first_at
        return (self.tokens - 1) * streaming_time / took if took > 0 else 0.0


def add_up(parts: Sequence[SessionStats]) -> SessionStats:
    """Of all sessions of one text."""
    total = SessionStats()
    for each in fields(SessionStats):
        setattr(total, each.name, sum(getattr(part, each.name) for part in parts))
    return total
