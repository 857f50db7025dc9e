"""How a load is doing while it runs: what came since the last look, and who waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forerun.bench.job import TextRun
from forerun.bench.meter import spread


@dataclass(slots=True)
class Counts:
    """Since the last look."""

    tokens: int = 0
    texts: int = 0  # written whole
    different: int = 0  # of those, not the reference's
    refused: int = 0
    failed: int = 0  # ended early for another reason
    first_tokens: list[float] = field(default_factory=list)  # seconds from opening, of texts begun
    gaps: list[float] = field(default_factory=list)  # seconds between two arrivals of a text
    longest: float = 0.0  # seconds that an active text was without a token, at most


class Pulse:
    """Told of every arrival; asked for a sample now and then. Times are absolute seconds."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._since: dict[int, float] = {}  # by text under way: its newest arrival, or its opening
        self._next = 1

    def opened(self, now: float) -> int:
        """A text is opened; its number here."""
        number, self._next = self._next, self._next + 1
        self._since[number] = now
        return number

    def arrived(self, number: int, count: int, now: float) -> None:
        """`count` tokens of a text came at once."""
        counts, waited = self._counts, now - self._since[number]
        counts.tokens += count
        counts.gaps.append(waited)
        counts.longest = max(counts.longest, waited)
        self._since[number] = now

    def began(self, waited: float) -> None:
        """The first token of a text came `waited` seconds after its opening."""
        self._counts.first_tokens.append(waited)

    def ended(self, number: int, run: TextRun) -> None:
        """A text is over, one way or another."""
        del self._since[number]
        counts = self._counts
        counts.texts += run.finished
        counts.different += run.finished and run.difference is not None
        counts.refused += run.refused
        counts.failed += not run.finished and not run.refused

    def take(self, now: float) -> dict[str, Any]:
        """What happened since the last call, as JSON. Times in ms."""
        counts, self._counts = self._counts, Counts()
        waits = [now - since for since in self._since.values()]
        return {
            "tokens": counts.tokens,
            "texts": counts.texts,
            "different": counts.different,
            "refused": counts.refused,
            "failed": counts.failed,
            "active": len(waits),
            "longest_wait_ms": 1e3 * max([counts.longest, *waits], default=0.0),
            "gap_ms": spread(counts.gaps),
            "ttft_ms": spread(counts.first_tokens),
        }
