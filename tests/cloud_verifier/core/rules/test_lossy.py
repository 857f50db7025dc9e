"""Laws of the lossy rules: each lets pass what its definition says, and the text is not the target's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloud_verifier.core.offers import Offer
from cloud_verifier.core.rules.lossy import entropy
from common.acceptance import Acceptance, AcceptanceRule
from tests.cloud_verifier.core.rules.steps import Models, Step

TYPICAL, TOPK_GAP, BILD = AcceptanceRule.TYPICAL, AcceptanceRule.TOPK_GAP, AcceptanceRule.BILD
LAW = np.array([0.5, 0.3, 0.15, 0.05, 0.0])


def passed(acceptance: Acceptance, law: np.ndarray = LAW, own: int = -1) -> list[int]:
    """Tokens that are taken as the only child after a row with this law, where the target writes `own`."""
    models = Models(0, vocab_size=len(law))
    models._laws["target", ()] = law
    taken = list[int]()
    for token in range(len(law)):
        step = Step(models)
        step.add((), -1, Offer((token,)))
        if step.written(acceptance, None, coupled=own) == (token,):
            taken.append(token)
    return taken


@pytest.mark.parametrize(
    ("acceptance", "tokens"),
    [
        (Acceptance(TYPICAL, epsilon=0.3, delta=1.0), [0]),  # the chance must be above epsilon, not at it
        (Acceptance(TYPICAL, epsilon=0.29, delta=1.0), [0, 1]),
        (Acceptance(TYPICAL, epsilon=0.3, delta=0.09), [0, 1, 2, 3]),  # entropy 1.14: 0.09 e^-1.14 = 0.029
        (Acceptance(TYPICAL, epsilon=0.3, delta=0.3), [0, 1, 2]),
        (Acceptance(TYPICAL, epsilon=1.0, delta=0.0), [0, 1, 2, 3]),
        (Acceptance(TOPK_GAP, top=1, gap=9.0), [0]),
        (Acceptance(TOPK_GAP, top=3, gap=9.0), [0, 1, 2]),
        (Acceptance(TOPK_GAP, top=5, gap=1.0), [0, 1]),  # log(0.5 / 0.15) is 1.2
        (Acceptance(TOPK_GAP, top=5, gap=1.21), [0, 1, 2]),
        (Acceptance(TOPK_GAP, top=5, gap=1e9), [0, 1, 2, 3]),
        (Acceptance(BILD, rollback=0.5), []),  # -log 0.5 is 0.69
        (Acceptance(BILD, rollback=0.7), [0]),
        (Acceptance(BILD, rollback=2.0), [0, 1, 2]),
        (Acceptance(BILD, rollback=1e9), [0, 1, 2, 3]),
    ],
    ids=lambda each: each.title if isinstance(each, Acceptance) else "",
)
def test_what_passes_is_what_the_definition_says(acceptance: Acceptance, tokens: list[int]) -> None:
    assert passed(acceptance) == tokens


def test_equals_pass_together() -> None:
    assert passed(Acceptance(TOPK_GAP, top=1), np.array([0.4, 0.4, 0.2])) == [0, 1]


def test_entropy_is_in_nats() -> None:
    assert entropy(np.full(8, 1 / 8)) == pytest.approx(math.log(8))
    assert entropy(np.array([1.0, 0.0])) == 0.0


@pytest.mark.parametrize("rule", [TYPICAL, TOPK_GAP, BILD], ids=lambda rule: rule.title)
def test_the_targets_own_choice_is_taken_where_a_child_holds_it(rule: AcceptanceRule) -> None:
    models = Models(0, vocab_size=5)
    models._laws["target", ()] = LAW
    step = Step(models)
    step.add((), -1, Offer((0, 1, 3)))
    assert step.written(Acceptance(rule), None, coupled=3) == (3,)
    assert step.written(Acceptance(rule), None, coupled=4) == (0,), "else the eldest that is good enough"


@pytest.mark.parametrize("rule", [TYPICAL, TOPK_GAP, BILD], ids=lambda rule: rule.title)
def test_without_a_child_that_is_good_enough_the_target_writes(rule: AcceptanceRule) -> None:
    models = Models(0, vocab_size=5)
    models._laws["target", ()] = LAW
    for offer in (Offer(), Offer((4,))):
        step = Step(models)
        step.add((), -1, offer)
        assert step.written(Acceptance(rule), None, coupled=2) == (2,)


def test_the_walk_goes_on_below_what_was_let_pass() -> None:
    models = Models(0, vocab_size=5)
    models._laws["target", ()] = models._laws["target", (1,)] = LAW
    step = Step(models)
    step.add((), -1, Offer((1,)))
    step.add((1,), 0, Offer((0,)))
    assert step.written(Acceptance(TOPK_GAP), None, coupled=2) == (1, 0)


@pytest.mark.parametrize("rule", [TYPICAL, TOPK_GAP, BILD], ids=lambda rule: rule.title)
def test_the_law_is_not_the_targets(rule: AcceptanceRule) -> None:
    """The draft's token comes always, where the target would write it in half of all cases."""
    models = Models(0, vocab_size=5)
    models._laws["target", ()] = LAW
    step = Step(models)
    step.add((), -1, Offer((0,)))
    written = [step.written(Acceptance(rule), None, coupled=own) for own in range(5)]
    assert written == [(0,)] * 5
