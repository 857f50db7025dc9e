"""What a rule looks at, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.offers import Ask, Offer
from cloud_verifier.core.target import StepItem
from common.chances import SAMPLE, Chances
from common.errors import LocalError

FloatArray = NDArray[np.float64]
TokenArray = NDArray[np.int64]


class Rows:
    """The output rows of one session in a step: the tip is row 0, a child stands behind its parent.

    Args: item, with an `ask`; coupled, the coupled rule's choice of each row; law, which gives a row's
    probabilities float64 [V], the target's own after all sampling parameters. It is asked for the rows that a
    decision needs, most often the few on the path that is committed.
    """

    def __init__(self, item: StepItem, coupled: NDArray[np.int32], law: Callable[[int], FloatArray]) -> None:
        if item.ask is None or len(item.ask.offers) != len(item.outputs):
            raise LocalError("a rule needs one offer for each output row")
        self.ask: Ask = item.ask
        self._coupled = coupled
        self._law = law
        self._positions = item.positions[item.outputs]
        row_of = {row: output for output, row in enumerate(item.outputs.tolist())}
        parents = item.parents.tolist()
        self._children = {
            (row_of[parents[row]], int(item.tokens[row])): output
            for row, output in row_of.items()
            if parents[row] in row_of
        }

    def offer(self, row: int) -> Offer:
        return self.ask.offers[row]

    def law(self, row: int) -> FloatArray:
        """The target's probabilities [V] of what follows the row."""
        return self._law(row)

    def coupled(self, row: int) -> int:
        return int(self._coupled[row])

    def position(self, row: int) -> int:
        """Of the token that the row's choice is."""
        return int(self._positions[row]) + 1

    def child(self, row: int, token: int) -> int | None:
        """The row that evaluates this child, if the step does."""
        return self._children.get((row, token))


class Rule(Protocol):
    """Decides the rows of one session in one step."""

    def decide(self, rows: Rows, chances: Chances) -> dict[int, int]:
        """The choice of every row on the path that the commit walk will take from row 0. No other row's
        matters: it dies."""
        ...


def residual(law: FloatArray, tokens: TokenArray, chances: FloatArray) -> FloatArray:
    """norm(max(law - q, 0)) [V], where q gives `tokens` [n] these `chances` [n] and no others.

    `law` [V] may sum to less than 1. Where nothing is left over, which only rounding brings about, `law`.
    """
    left = law.copy()
    left[tokens] = np.maximum(left[tokens] - chances, 0.0)
    total = left.sum()
    return left / total if total > 0.0 else law


def sample(rows: Rows, row: int, weights: FloatArray, chances: Chances) -> int:
    """A token drawn from `weights` [V] for what follows the row."""
    return chances.pick((SAMPLE, rows.position(row)), weights)
