"""Count near ties: committed tokens that another rounding might have chosen otherwise.

The text is the target's up to rounding. Unless the engine is deterministic, a choice with a margin below the
rounding error could differ in another batch. The counter says how often that could happen.
"""

from __future__ import annotations

import math

from cloud_verifier.core.engine_protocol import FloatArray


class NearTies:
    """Counts near ties of committed choices, over all sessions since the verifier began.

    A margin is the choice's score minus the runner-up's, in logits. Under sampling the scores are logits over
    the temperature plus noise, so a margin times the temperature is the change of a logit that turns the
    choice. Choices of rejected draft rows do not count. Neither do candidates removed by a filter (top-k,
    top-p, min-p), although rounding may also move a filter's edge.
    """

    def __init__(self, near_tie: float) -> None:
        self.near_tie = near_tie  # logits below which rounding could turn a choice
        self.num_near_ties = 0
        self.smallest = math.inf

    def note(self, margins: FloatArray, temperature: float) -> None:
        """Count the `margins` of committed choices of one session, any number, as in `StepResult`."""
        for scaled in margins.tolist():
            margin = scaled * temperature if temperature > 0.0 else scaled
            self.num_near_ties += margin < self.near_tie
            self.smallest = min(self.smallest, margin)
