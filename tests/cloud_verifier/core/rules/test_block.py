"""Laws of block verification: the target's law, and never less accepted than token by token."""

from __future__ import annotations

import numpy as np
import pytest

from common.acceptance import Acceptance, AcceptanceRule
from tests.cloud_verifier.core.rules.steps import (
    ALL,
    CHAIN_1,
    CHAIN_2,
    CHAIN_3,
    LEAF,
    PAIR,
    TREE,
    Models,
    Shape,
    law_under,
    mean_length,
)
from tests.worlds.enumeration import distance

EXACT = 1e-12
BLOCK, REJECTION = Acceptance(AcceptanceRule.BLOCK), Acceptance(AcceptanceRule.REJECTION)
FORK: Shape = (CHAIN_2, CHAIN_1)
SHAPES: dict[str, Shape] = {
    "nothing": LEAF,
    "one": CHAIN_1,
    "two": CHAIN_2,
    "three": CHAIN_3,
    "pair": PAIR,
    "all": ALL,
    "tree": TREE,
    "fork": FORK,
}


def error_of(models: Models, shape: Shape, length: int = 4, **rows: object) -> float:
    written = models.completed(law_under(BLOCK, models, shape, **rows), length)  # type: ignore[arg-type]
    return distance(written, models.completed({(): 1.0}, length))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_has_the_targets_law(shape: str) -> None:
    for seed in range(4):
        assert error_of(Models(seed), SHAPES[shape]) < EXACT


@pytest.mark.parametrize("kept", [1, 2])
def test_a_draft_that_leaves_tokens_out_changes_nothing(kept: int) -> None:
    for seed in range(3):
        assert error_of(Models(seed, vocab_size=4, kept=kept), CHAIN_2, length=3) < EXACT


def test_how_far_the_chain_is_evaluated_may_depend_on_its_tokens() -> None:
    """The block then ends with the first token that is not."""
    for seed in range(4):
        assert error_of(Models(seed), CHAIN_3, evaluated=lambda path: path[-1] != 1) < EXACT
        assert error_of(Models(seed), FORK, evaluated=lambda path: path[-1] != 0) < EXACT


def test_a_draft_that_is_the_target_is_accepted_whole() -> None:
    models = Models(1)
    for text in ((), (0,), (1,), (2,)):
        q = np.zeros(3)
        draft = models.draft(text)
        q[list(draft.tokens)] = np.array(draft.counts) / 256
        models._laws["target", text] = q
    assert mean_length(law_under(BLOCK, models, CHAIN_2)) == pytest.approx(3.0, abs=1e-9)
    assert error_of(models, CHAIN_2) < EXACT


def test_a_block_is_accepted_at_least_as_far_as_token_by_token_and_sometimes_farther() -> None:
    gains = list[float]()
    for seed in range(12):
        models = Models(seed)
        by_block = mean_length(law_under(BLOCK, models, CHAIN_2))
        gains.append(by_block - mean_length(law_under(REJECTION, models, CHAIN_2)))
    assert min(gains) > -EXACT
    assert max(gains) > 0.01


def test_a_single_token_is_decided_as_by_rejection() -> None:
    for seed in range(4):
        models = Models(seed)
        assert distance(law_under(BLOCK, models, CHAIN_1), law_under(REJECTION, models, CHAIN_1)) < EXACT
