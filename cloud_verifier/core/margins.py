"""How narrowly committed tokens were chosen: near ties are counted, and the smallest margin is kept.

The text is the target's up to rounding: a choice whose margin is smaller than what rounding moves could be
another in another batch, unless the engine is deterministic. How often that could happen is counted here.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from cloud_verifier.core.target import FloatArray

BOUNDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Margins, in logits, between which choices are counted: a factor of ten each, from rounding to certainty."""


class MarginCounter:
    """Margins of committed choices, in logits, over all sessions since the verifier began.

    A margin is the choice's score minus the runner-up's. Under sampling scores are logits over the
    temperature plus noise, so that a margin times the temperature is what a logit would have to change by.
    Choices of draft rows that were not committed do not count: nobody reads them. Candidates that a filter
    (top-k, top-p, min-p) has left out do not either, though rounding may also move a filter's edge.
    """

    def __init__(self, near_tie: float) -> None:
        self.near_tie = near_tie  # logits below which rounding could turn a choice
        self.num_choices = 0
        self.num_near_ties = 0
        self.smallest = math.inf
        self.counts = [0] * (len(BOUNDS) + 1)  # choices by margin: below BOUNDS[0], ..., BOUNDS[-1] or above

    def note(self, margins: FloatArray, temperature: float) -> None:
        """These choices, all of one session, were committed. `margins` as in `StepResult`, any number."""
        for margin in margins.tolist():
            self._note(margin * temperature if temperature > 0.0 else margin)

    def _note(self, margin: float) -> None:
        self.num_choices += 1
        self.num_near_ties += margin < self.near_tie
        self.smallest = min(self.smallest, margin)
        self.counts[bisect_right(BOUNDS, margin)] += 1
