"""Fixed times at which something leaves, whatever there is to say."""

from __future__ import annotations

import math

from common.errors import LocalError


class Cadence:
    """Slots at `began_at` + 1, 2, 3 ... times `interval`, all in seconds.

    Whoever drives it waits until `next_at` and calls `due`. A slot that was slept through is lost and not
    made up for: two frames close together would tell that somebody was busy.
    """

    def __init__(self, interval: float, began_at: float) -> None:
        if not 0 < interval < math.inf:
            raise LocalError(f"a cadence of {interval} s is none")
        self.interval = interval
        self.num_slots = 0  # used so far
        self._began_at = began_at
        self._number = 1  # of the next slot

    @property
    def next_at(self) -> float:
        """When the next slot comes."""
        return self._began_at + self._number * self.interval

    def due(self, now: float) -> bool:
        """Whether a slot has come; it is used up by asking."""
        if now < self.next_at:
            return False
        self.num_slots += 1
        self._number = max(self._number, math.floor((now - self._began_at) / self.interval)) + 1
        if self.next_at <= now:  # rounding
            self._number += 1
        return True
