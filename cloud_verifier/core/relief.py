"""How many rows a step may have after the engine ran out of memory: half, and then slowly more again."""

from __future__ import annotations

RECOVERY = 1.02  # times, for each step that went well: doubled in 35 steps


class Relief:
    """The most rows of a step while memory is short. `usual` rows are as many as a step ever has."""

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._most = float(usual)

    @property
    def active(self) -> bool:
        """Whether steps are smaller than they could be."""
        return self._most < self._usual

    def left(self, wanted: int, num_taken: int) -> int:
        """How many of `wanted` rows a step may have that has `num_taken` already."""
        return max(0, min(wanted, int(self._most) - num_taken))

    def on_failure(self, num_rows: int) -> bool:
        """A step of so many rows did not fit. Whether a smaller one could."""
        self._most = max(1.0, num_rows / 2)
        return num_rows > 1

    def on_success(self) -> None:
        """A step fitted."""
        self._most = min(self._usual, self._most * RECOVERY)
