"""A target that is no model: each token is a formula of the one before it and of its position.

It answers at once, so what a step takes beyond its floor is the verifier's own: scheduler, codec, gRPC. And
its texts are known, so they can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.target import FloatArray, StepPlan, StepResult, TargetInfo

FORMULA = "formula"
"""What a verifier is told instead of a model's path."""

VOCAB_SIZE = 4096
MAX_POSITIONS = 2**20
FINGERPRINT = b"formula"
TABLE: tuple[bytes | None, ...] = tuple(b"token %d" % token for token in range(VOCAB_SIZE))

IndexArray = NDArray[np.int64]


def following(tokens: IndexArray, positions: IndexArray) -> IndexArray:
    """The token after each of `tokens` at `positions`. Both factors are primes, so texts seldom go in
    circles."""
    found: IndexArray = (tokens * 1103 + positions * 7919 + 12345) % VOCAB_SIZE
    return found


def formula_text(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` tokens after `prompt`, as `FormulaEngine` writes them."""
    text = list(prompt)
    for _ in range(count):
        last, position = np.array([text[-1]]), np.array([len(text) - 1])
        text.append(int(following(last, position)[0]))
    return tuple(text[len(prompt) :])


class FormulaEngine:
    """A `TargetEngine` that holds no KV: its choices depend on a row's own token and position."""

    def __init__(self, num_slots: int) -> None:
        self._info = TargetInfo(FORMULA, VOCAB_SIZE, MAX_POSITIONS, num_slots, (), FINGERPRINT)

    @property
    def info(self) -> TargetInfo:
        return self._info

    def evaluate(self, plan: StepPlan) -> StepResult:
        """See `TargetEngine.evaluate`. Every margin is 1: there is no doubt."""
        items = plan.items
        tokens = np.concatenate([item.tokens[item.outputs] for item in items], dtype=np.int64)
        positions = np.concatenate([item.positions[item.outputs] for item in items], dtype=np.int64)
        ends = np.cumsum([len(item.outputs) for item in items])[:-1]
        choices = following(tokens, positions).astype(np.int32)
        margins: FloatArray = np.ones(len(choices), np.float32)
        return StepResult(tuple(np.split(choices, ends)), tuple(np.split(margins, ends)))
