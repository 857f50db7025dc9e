"""How long texts stood still: from each fault until the next new text of every text that ran then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.faults.draws import Fault, Kind


@dataclass(slots=True)
class Watch:
    """One fault, until the texts that ran have gone on or ended. Times in seconds, monotonic."""

    fault: Fault
    at: float
    waiting: set[str]  # texts that have not
    recovered_at: float | None = None

    def heard(self, name: str, now: float) -> None:
        """New text of `name`, or its end."""
        self.waiting.discard(name)
        if not self.waiting and self.recovered_at is None:
            self.recovered_at = now


@dataclass(slots=True)
class Board:
    """All faults of a run."""

    watches: list[Watch] = field(default_factory=list)
    _open: list[Watch] = field(default_factory=list)

    def struck(self, fault: Fault, names: Iterable[str], now: float) -> None:
        """A fault has begun; these texts are affected."""
        watch = Watch(fault, now, set(names))
        self.watches.append(watch)
        if watch.waiting:
            self._open.append(watch)

    def heard(self, name: str, now: float) -> None:
        """New text of `name`, or its end."""
        for watch in self._open:
            watch.heard(name, now)
        self._open = [watch for watch in self._open if watch.waiting]

    def report(self) -> dict[str, dict[str, float | int | None]]:
        """By kind: how many, and the recoveries' median, 95th percentile and longest, seconds. `alone`: of
        those during which nothing else broke."""
        found: dict[str, dict[str, float | int | None]] = {}
        for kind in Kind:
            all_of = [watch for watch in self.watches if watch.fault.kind is kind]
            if all_of:
                times = _times(all_of)
                alone = _times([watch for watch in all_of if self._was_alone(watch)])
                found[kind.value] = {
                    "faults": len(all_of),
                    "texts_affected": len(times),
                    "p50_s": percentile(times, 0.5),
                    "p95_s": percentile(times, 0.95),
                    "longest_s": max(times, default=None),
                    "alone": len(alone),
                    "alone_p50_s": percentile(alone, 0.5),
                    "alone_p95_s": percentile(alone, 0.95),
                }
        return found

    def _was_alone(self, watch: Watch) -> bool:
        """Whether no other fault fell into the second before it or into its recovery."""
        end = watch.recovered_at if watch.recovered_at is not None else math.inf
        return not any(
            other is not watch and watch.at - 1.0 - other.fault.lasts < other.at < end
            for other in self.watches
        )


def _times(watches: Sequence[Watch]) -> list[float]:
    return sorted(
        round(watch.recovered_at - watch.at, 4) for watch in watches if watch.recovered_at is not None
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of them do not exceed; None of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
