"""Define what a drafter asks of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

MOST_LEVELS = 16
"""Levels of guesses below a tip, for a model that has no limit of its own."""


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Holds the rows of one forward, on the model's device."""

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    features: Tensor | None  # [T, F] of the position before each row; None if the target keeps none
    outputs: Tensor  # int64 [O] rows whose followers are sought
    level: int  # 1 for the tip and the rows before it, 2 for the nodes below it, ...


@dataclass(frozen=True, slots=True)
class Drafted:
    """Holds what a model says of its output rows."""

    logits: Tensor  # float32 [O, V] of the tokens that follow
    features: Tensor | None = None  # [O, F] for the rows below; None if the model reads none


class DraftModel(Protocol):
    """A model that guesses. It runs inside a current step, as the target does.

    Its state at a slot may depend on the tokens up to the slot's position and on the target's features of
    the positions before, and on nothing else: sessions with a common prefix share it.
    """

    depth: int  # most levels that it can guess
    first_position: int  # of a text that it reads: 1 if it needs the features of the one before
    has_own_kv: bool  # so that it must read all rows; otherwise it reads the target's KV, or none

    def forward(self, rows: DraftRows) -> Drafted:
        """Run the rows."""
        ...
