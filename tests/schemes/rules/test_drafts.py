"""A drawn draft is near the draft model's softmax, and is drawn by its own chances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import MAX_TOKENS, TOTAL, Draft
from common.chances import SeededChances
from common.errors import LocalError
from schemes.rules.drafts import draw, quantised, remaining
from tests.worlds.enumeration import law_of

SCORES = st.lists(st.floats(-60, 60), min_size=1, max_size=MAX_TOKENS)


def softmax(scores: list[float]) -> np.ndarray:
    weights = np.exp(np.array(scores) - max(scores))
    return np.asarray(weights / weights.sum())


@given(SCORES)
def test_a_quantised_draft_is_valid_and_near_the_softmax(scores: list[float]) -> None:
    tokens = [7 * place for place in range(len(scores))]
    draft = quantised(tokens, scores)
    assert draft.problem() is None
    counts = dict(zip(draft.tokens, draft.counts, strict=True))
    for token, share in zip(tokens, softmax(scores), strict=True):
        assert abs(counts.get(token, 0) - share * TOTAL) < 1.0 + 1e-9


def test_tokens_that_are_as_good_as_never_drawn_are_left_out() -> None:
    assert quantised([5, 2, 9], [0.0, -20.0, -1.0]) == Draft((5, 9), (187, 69))


@pytest.mark.parametrize(("tokens", "scores"), [([], []), ([1], []), ([1, 2], [0.0])])
def test_a_draft_of_nothing_is_a_defect(tokens: list[int], scores: list[float]) -> None:
    with pytest.raises(LocalError):
        quantised(tokens, scores)


def test_the_chances_of_the_remaining_tokens_sum_to_1() -> None:
    draft = Draft((3, 5, 8), (128, 64, 64))
    tokens, chances = remaining(draft, (5,))
    assert (tokens.tolist(), chances.tolist()) == ([3, 8], [2 / 3, 1 / 3])
    assert [len(each) for each in remaining(draft, (3, 5, 8))] == [0, 0]


def test_children_are_drawn_without_replacement_by_the_drafts_chances() -> None:
    draft = Draft((3, 5, 8), (150, 100, 6))
    law = law_of(lambda branch: draw(draft, 1, 2, branch))
    chance = {token: count / TOTAL for token, count in zip(draft.tokens, draft.counts, strict=True)}
    expected = {
        (first, second): chance[first] * chance[second] / (1 - chance[first])
        for first, second in itertools.permutations(draft.tokens, 2)
    }
    assert law == pytest.approx(expected, abs=1e-15)


@given(SCORES, st.integers(0, 2**64 - 1), st.integers(1, 2**31))
def test_a_longer_draw_begins_as_the_shorter_one(scores: list[float], seed: int, node: int) -> None:
    draft, chances = quantised(list(range(len(scores))), scores), SeededChances(seed)
    four = draw(draft, node, 4, chances)
    assert draw(draft, node, 2, chances) == four[:2]
    assert len(set(four)) == len(four) == min(4, len(draft.tokens))
