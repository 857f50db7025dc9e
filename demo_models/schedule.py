"""How far a training run is, by steps or by the clock, and what follows from that."""

import time
from dataclasses import dataclass

LONG_CONTEXT_FROM = 0.85
"""Part of a run after which it reads windows of 1024 tokens instead of 512."""


@dataclass(frozen=True)
class Budget:
    """Length of a run: a number of steps (repeatable), or wall-clock seconds (fits the machine at hand)."""

    num_steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.num_steps is None) == (self.seconds is None):
            raise ValueError("a training budget is either a number of steps or a number of seconds")


class Progress:
    """Fraction of a budget that is used up, 0 to 1."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._started_at = time.monotonic()
        self.num_steps = 0

    @property
    def elapsed_time(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started_at

    @property
    def fraction(self) -> float:
        """Part of the budget used so far."""
        if self._budget.num_steps is not None:
            return min(1.0, self.num_steps / self._budget.num_steps)
        assert self._budget.seconds is not None
        return min(1.0, self.elapsed_time / self._budget.seconds)


def learning_rate_factor(fraction: float, flat_until: float = 0.35, final: float = 0.03) -> float:
    """Return the trapezoid: up over the first 2 %, flat, then down in a straight line to `final`."""
    if fraction < 0.02:
        return 0.1 + 0.9 * fraction / 0.02
    if fraction < flat_until:
        return 1.0
    return final + (1.0 - final) * (1.0 - fraction) / (1.0 - flat_until)


def context_length(fraction: float) -> int:
    """Return the window length at this point of a run."""
    return 512 if fraction < LONG_CONTEXT_FROM else 1024
