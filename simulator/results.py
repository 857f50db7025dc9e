"""What a simulated session comes to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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

    def as_run(self) -> dict[str, Any]:
        """As `common.figures` reads it: what an edge tells when it is done, times in milliseconds."""
        return {
            "tokens": self.tokens,
            "arrivals_ms": [1e3 * arrival for arrival in self.arrivals],
            "stats": asdict(self.stats),
            "link_bytes_up": self.bytes_up,
            "link_bytes_down": self.bytes_down,
        }
