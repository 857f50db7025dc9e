"""Laws of what rules look at: rows are found by their tokens, and what is left over is a law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloud_verifier.core.offers import Offer
from cloud_verifier.core.rules import RULES, decide
from cloud_verifier.core.rules.base import Rows, residual
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import LocalError
from tests.cloud_verifier.core.rules.steps import TIP_AT, Models, Step

REJECTION = Acceptance(AcceptanceRule.REJECTION)


def step() -> Step:
    made = Step(Models(0))
    tip = made.add((), -1, Offer((1, 2)))
    made.add((1,), tip, Offer())
    below = made.add((2,), tip, Offer((1,)))
    made.add((2, 1), below, Offer())
    return made


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_child_is_found_by_its_parent_and_its_token(chunk: int) -> None:
    item = step().item(REJECTION, chunk)
    rows = Rows(item, np.array([7, 8, 9, 6], np.int32), lambda row: np.full(3, row / 10))
    assert [rows.child(0, token) for token in range(3)] == [None, 1, 2]
    assert [rows.child(2, 1), rows.child(1, 1), rows.child(3, 0)] == [3, None, None]
    assert [rows.position(row) - TIP_AT for row in range(4)] == [1, 2, 2, 3]
    assert (rows.coupled(2), rows.offer(2).tokens, rows.law(3)[0]) == (9, (1,), 0.3)


def test_what_is_left_over_is_a_law() -> None:
    left = residual(np.array([0.5, 0.3, 0.2]), np.array([0, 2]), np.array([0.25, 0.75]))
    assert left == pytest.approx([0.25 / 0.55, 0.3 / 0.55, 0.0])


def test_where_nothing_is_left_over_the_law_stays() -> None:
    law = np.array([0.25, 0.75, 0.0])
    assert residual(law, np.array([0, 1]), np.array([0.25, 0.75])) is law


def test_a_step_without_offers_is_a_defect() -> None:
    item = step().item(REJECTION)
    assert item.ask is not None
    for broken in (replace(item, ask=None), replace(item, ask=replace(item.ask, offers=()))):
        with pytest.raises(LocalError, match="one offer for each output row"):
            decide(broken, np.zeros(4, np.int32), lambda row: np.ones(3))


def test_there_is_a_rule_for_every_name_but_the_default() -> None:
    assert set(RULES) == set(AcceptanceRule) - {AcceptanceRule.COUPLED}


def test_rows_off_the_path_keep_the_coupled_choice() -> None:
    made = step()
    for acceptance in map(Acceptance, RULES):
        made.models._laws["target", ()] = np.array([0.0, 0.0, 1.0])
        made.models._laws["target", (2,)] = np.array([1.0, 0.0, 0.0])
        choices = decide(
            made.item(acceptance),
            np.array([2, 77, 0, 99], np.int32),
            lambda row: made.models.target(made.paths[row]),
        )
        assert choices.tolist() == [2, 77, 0, 99]
