"""What it takes to be sent, and a budget of it."""

from __future__ import annotations

import math

FIRST_PRICE = 0.07
"""What a token must save at first under a budget, in turns: some five tokens per token of text meet it."""

PRICE_GAIN = 0.01
"""By how much the logarithm of the price rises per token wanted and not earned. A change is followed within
1 / (gain * budget), some 20, tokens of text; news is older than that only over very long round trips."""

DEAREST = 4.0
"""The highest price, in turns: hardly a token saves as much, and from there it soon comes down again."""

LENT = 64
"""Tokens that a budget lends at the beginning."""

MOST_SAVED = 1e6
"""Tokens; more than any text needs."""


class TrafficBudget:
    """What a draft token must save to be sent, in turns: `least`, and as much more as keeps to a budget.

    With a `budget` no more tokens leave than that per token of text, and `LENT` once; 0 is none.
    """

    def __init__(self, least: float, budget: float) -> None:
        self.price = max(least, FIRST_PRICE) if budget else least
        self._least, self._budget = least, budget
        self._saved = float(LENT)  # tokens that may leave now
        self._position: int | None = None  # of the tip

    def update(self, position: int) -> None:
        """The tip is at `position` now."""
        if self._budget and self._position is not None and position > self._position:
            earned = self._budget * (position - self._position)
            self._saved = min(MOST_SAVED, self._saved + earned)
            self._raise_by(-earned)
        self._position = position

    def spend(self, wanted: int) -> int:
        """How many of `wanted` tokens leave now."""
        if not self._budget:
            return wanted
        self._raise_by(wanted)  # also for what stays here, and so is wanted again
        leaving = min(wanted, math.floor(self._saved))
        self._saved -= leaving
        return leaving

    def _raise_by(self, tokens: float) -> None:
        dearest = max(self._least, DEAREST)
        self.price = min(dearest, max(self._least, self.price * math.exp(min(PRICE_GAIN * tokens, 1.0))))
