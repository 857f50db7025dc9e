"""What a simulated session comes to."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.core.stats import SessionStats


@dataclass(frozen=True, slots=True)
class SessionResult:
    """What one session was like. Times in seconds since it began."""

    tokens: tuple[int, ...]
    truth: tuple[int, ...]  # what the target alone writes
    arrivals: tuple[float, ...]  # one per token
    stats: SessionStats
    bytes_up: int
    bytes_down: int
