"""Laws of the rules that decide node by node: the target's law is written, and how much is accepted."""

from __future__ import annotations

import numpy as np
import pytest

from cloud_verifier.core.offers import Offer
from common.acceptance import Acceptance, AcceptanceRule
from common.chances import SeededChances
from common.draft import Draft
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
    Step,
    drawn,
    law_under,
    mean_length,
)
from tests.worlds.enumeration import distance

EXACT = 1e-12
NUM_SEEDS = 1000
REJECTION, SPECINFER = Acceptance(AcceptanceRule.REJECTION), Acceptance(AcceptanceRule.SPECINFER)
SHAPES: dict[str, Shape] = {
    "nothing": LEAF,
    "one": CHAIN_1,
    "two": CHAIN_2,
    "three": CHAIN_3,
    "pair": PAIR,
    "all": ALL,
    "tree": TREE,
}


def lenient(lenience: float) -> Acceptance:
    return Acceptance(AcceptanceRule.LENIENCE, lenience=lenience)


def error_of(acceptance: Acceptance, models: Models, shape: Shape, length: int = 3) -> float:
    written = models.completed(law_under(acceptance, models, shape), length)
    return distance(written, models.completed({(): 1.0}, length))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("acceptance", [REJECTION, SPECINFER], ids=lambda each: each.title)
def test_what_is_written_has_the_targets_law(acceptance: Acceptance, shape: str) -> None:
    for seed in range(4):
        assert error_of(acceptance, Models(seed), SHAPES[shape]) < EXACT


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_draft_that_leaves_tokens_out_changes_nothing(kept: int) -> None:
    for seed in range(3):
        assert error_of(SPECINFER, Models(seed, vocab_size=4, kept=kept), PAIR, length=2) < EXACT


def test_rows_that_are_not_evaluated_are_accepted_all_the_same() -> None:
    """And the walk ends there."""
    models = Models(5)
    law = law_under(SPECINFER, models, TREE, evaluated=lambda path: path[-1] != 1)
    assert distance(models.completed(law, 3), models.completed({(): 1.0}, 3)) < EXACT


def test_one_draft_is_accepted_as_often_as_the_laws_overlap() -> None:
    """1 - TV(p, q), Leviathan et al. 2023, theorem 3.5."""
    for seed in range(6):
        models = Models(seed)
        draft, target = models.draft(()), models.target(())
        q = np.zeros(3)
        q[list(draft.tokens)] = np.array(draft.counts) / 256
        accepted = mean_length(law_under(REJECTION, models, CHAIN_1)) - 1.0
        assert accepted == pytest.approx(np.minimum(target, q).sum(), abs=EXACT)


def test_more_children_are_accepted_more_often() -> None:
    for seed in range(6):
        models = Models(seed)
        lengths = [mean_length(law_under(SPECINFER, models, shape)) for shape in (LEAF, CHAIN_1, PAIR, ALL)]
        assert lengths == sorted(lengths)
        assert lengths[0] == pytest.approx(1.0)
        first_only = mean_length(law_under(REJECTION, models, PAIR))
        assert lengths[1] - EXACT <= first_only <= lengths[2] + EXACT, "the second is met by equality"


def test_all_tokens_of_the_vocabulary_are_always_accepted_if_the_draft_has_them() -> None:
    models = Models(2)
    models._laws["draft", ()] = np.full(3, 1 / 3)
    assert mean_length(law_under(SPECINFER, models, ALL)) == pytest.approx(2.0)


def test_lenience_of_1_is_rejection() -> None:
    for seed in range(3):
        models = Models(seed)
        assert (
            distance(law_under(lenient(1.0), models, CHAIN_2), law_under(REJECTION, models, CHAIN_2)) < EXACT
        )


@pytest.mark.parametrize("lenience", [0.8, 0.5, 0.1])
def test_lenience_accepts_more_and_is_not_lossless(lenience: float) -> None:
    """No token gets likelier than its chance over the lenience (Leviathan et al. 2023, A.5)."""
    errors = list[float]()
    for seed in range(6):
        models = Models(seed)
        law = law_under(lenient(lenience), models, CHAIN_1)
        assert mean_length(law) >= mean_length(law_under(REJECTION, models, CHAIN_1)) - EXACT
        first = models.completed(law, 1)
        errors.append(distance(first, models.completed({(): 1.0}, 1)))
        for (token,), chance in first.items():
            assert chance <= models.target(())[token] / lenience + EXACT
    assert max(errors) > 0.02


def test_a_child_without_a_distribution_has_no_say() -> None:
    models = Models(1)
    step = Step(models)
    step.add((), -1, Offer())
    step.add((0,), 0, Offer())
    same = Step(models)
    same.add((), -1, Offer())
    for seed in range(50):
        longer = step.written(REJECTION, SeededChances(seed))
        assert longer[:1] == same.written(REJECTION, SeededChances(seed))[:1]


def test_the_same_drafts_decide_the_same_again_and_the_prompts_rows_do_not_matter() -> None:
    models = Models(3)
    for seed in range(30):
        step = drawn(models, TREE, SeededChances(seed))
        once = step.written(SPECINFER, None)
        assert step.written(SPECINFER, None) == once
        assert step.written(SPECINFER, SeededChances(0)) == once, "the item's seed is 0"
        assert step.written(SPECINFER, None, chunk=3) == once


def test_seeds_write_as_often_as_the_law_says() -> None:
    """That the numbers of a seed do what the branches of the exact law stand for."""
    models = Models(4)
    law = law_under(SPECINFER, models, TREE)
    counts = dict.fromkeys(law, 0)
    for seed in range(NUM_SEEDS):
        chances = SeededChances(seed)
        counts[drawn(models, TREE, chances).written(SPECINFER, chances)] += 1
    means = {text: NUM_SEEDS * chance for text, chance in law.items()}
    likely = [(counts[text], mean) for text, mean in means.items() if mean >= 5]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in likely)
    assert statistic < len(likely) + 4 * np.sqrt(2 * len(likely))


def test_drafts_that_are_right_for_sure_are_taken_at_any_temperature() -> None:
    """Greedy text: the target's law has one token, and a draft of that token is the greedy match."""
    models = Models(0)
    models._laws["target", ()] = np.array([0.0, 1.0, 0.0])
    step = Step(models)
    step.add((), -1, Offer((1,), Draft((1,), (256,))))
    assert step.written(REJECTION, SeededChances(0)) == (1,)
    wrong = Step(models)
    wrong.add((), -1, Offer((2,), Draft((2,), (256,))))
    assert wrong.written(REJECTION, SeededChances(0)) == (1,)
