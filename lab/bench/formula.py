"""Implements a target without a model: a formula of the last token and its position gives each token.

The engine answers at once, so a step's time beyond its floor is the verifier's own: scheduler, codec, gRPC.
Its texts are known, so a load can check them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import FloatArray, StepPlan, StepResult, TargetEngine, TargetInfo

FORMULA = "formula"
"""Value of --model or --target instead of a model's path."""

VOCAB_SIZE = 4096
MAX_POSITIONS = 2**20
FINGERPRINT = b"formula"
TABLE: tuple[bytes | None, ...] = tuple(b"token %d" % token for token in range(VOCAB_SIZE))

IndexArray = NDArray[np.int64]


def following(tokens: IndexArray, positions: IndexArray) -> IndexArray:
    """Return the token after each of `tokens` at `positions`. Both factors are primes, so texts seldom
    repeat."""
    token_ids: IndexArray = (tokens * 1103 + positions * 7919 + 12345) % VOCAB_SIZE
    return token_ids


def formula_text(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the `count` tokens that `FormulaEngine` writes after `prompt`."""
    text = list(prompt)
    for _ in range(count):
        last, position = np.array([text[-1]]), np.array([len(text) - 1])
        text.append(int(following(last, position)[0]))
    return tuple(text[len(prompt) :])


class FormulaEngine(TargetEngine):
    """Implements `TargetEngine` without KV: a choice depends on a row's own token and position."""

    def __init__(self, num_slots: int) -> None:
        self.info = TargetInfo(FORMULA, VOCAB_SIZE, MAX_POSITIONS, num_slots, (), FINGERPRINT)

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Evaluate a step. Every margin is 1, as the formula has no near-ties."""
        items = plan.items
        tokens = np.concatenate([item.tokens[item.outputs] for item in items], dtype=np.int64)
        positions = np.concatenate([item.positions[item.outputs] for item in items], dtype=np.int64)
        ends = np.cumsum([len(item.outputs) for item in items])[:-1]
        choices = following(tokens, positions).astype(np.int32)
        margins: FloatArray = np.ones(len(choices), np.float32)
        return StepResult(tuple(np.split(choices, ends)), tuple(np.split(margins, ends)))
