"""Exact laws of programs that use chance: every possible answer is tried, and the chances are added up.

A program is a function of `Chances`. It is run again and again, each time down another branch of the tree of
all its answers, until none is left. A name's number is one uniform number: what an answer told of it holds
for later questions under the same name, so that a program which uses a number twice has exactly the law that
it would have in production, and not the one that its author had in mind.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from common.chances import Name

Outcome = TypeVar("Outcome", bound=Hashable)
FloatArray = NDArray[np.float64]

NEVER = 1e-14
"""Answers less likely than this are due to rounding (one minus a quotient that should be one)."""

MOST_RUNS = 200_000


class Branch:
    """One run's `Chances`: follows `script`, then takes the first answer each time and notes the others."""

    def __init__(self, script: tuple[int, ...] = ()) -> None:
        self.chance = 1.0
        self.untried: list[tuple[int, ...]] = []
        self._script = script
        self._answers: list[int] = []
        self._known: dict[Name, tuple[float, float]] = {}  # where a name's number lies, in [0, 1]

    def below(self, name: Name, bound: float) -> bool:
        return self._answer(name, [0.0, min(max(bound, 0.0), 1.0), 1.0]) == 0

    def pick(self, name: Name, weights: FloatArray) -> int:
        ends = list(accumulate(weights.tolist()))
        return self._answer(name, [0.0, *(end / ends[-1] for end in ends)])

    def _answer(self, name: Name, edges: Sequence[float]) -> int:
        """Which of the cells between `edges`, from 0 to 1, holds the number."""
        low, high = self._known.get(name, (0.0, 1.0))
        inside = [min(max(edge, low), high) for edge in edges]
        shares = [(end - start) / (high - low) for start, end in pairwise(inside)]
        possible = [cell for cell, share in enumerate(shares) if share > NEVER]
        place = len(self._answers)
        if place < len(self._script):
            answer = self._script[place]
        else:
            answer, *others = possible
            self.untried += [(*self._answers, other) for other in others]
        self._answers.append(answer)
        self.chance *= shares[answer]
        self._known[name] = inside[answer], inside[answer + 1]
        return answer


def law_of(program: Callable[[Branch], Outcome]) -> dict[Outcome, float]:
    """The chance of every outcome."""
    law: dict[Outcome, float] = {}
    scripts: list[tuple[int, ...]] = [()]
    for _ in range(MOST_RUNS):
        branch = Branch(scripts.pop())
        outcome = program(branch)
        law[outcome] = law.get(outcome, 0.0) + branch.chance
        scripts += branch.untried
        if not scripts:
            return law
    raise AssertionError(f"more than {MOST_RUNS} branches: make the program smaller")


def distance(law: dict[Outcome, float], other: dict[Outcome, float]) -> float:
    """The largest difference between two chances of the same outcome."""
    outcomes = law.keys() | other.keys()
    return max(abs(law.get(each, 0.0) - other.get(each, 0.0)) for each in outcomes)
