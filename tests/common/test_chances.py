"""Laws of named numbers: a name has one, they are uniform and independent, what they pick has its chance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import MAX_TOKENS, TOTAL, Draft, draw, quantised
from common.chances import ACCEPT, BLOCK, DRAW, SAMPLE, Name, SeededChances, cell
from common.errors import LocalError
from common.noise import UNIFORM_BITS, noise_bits
from tests.worlds.enumeration import law_of

NAMES = st.tuples(st.sampled_from([DRAW, ACCEPT, BLOCK, SAMPLE]), st.integers(0, 2**31), st.integers(0, 999))


def uniform(chances: SeededChances, name: Name) -> float:
    """The number of a name, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(UNIFORM_BITS + 2):
        middle = (low + high) / 2
        low, high = (low, middle) if chances.below(name, middle) else (middle, high)
    return low


@given(st.integers(0, 2**64 - 1), NAMES)
def test_asking_twice_is_asking_the_same(seed: int, name: Name) -> None:
    first, second = SeededChances(seed), SeededChances(seed)
    second.below((SAMPLE, 5), 0.5)  # what else is asked for does not matter
    assert uniform(first, name) == uniform(second, name)


def test_the_number_of_a_name_is_fixed() -> None:
    """Another platform or version must draw the same, or a retry elsewhere would not be one."""
    assert uniform(SeededChances(7), (ACCEPT, 12, 0)) == pytest.approx(0.939985029, abs=1e-9)
    assert uniform(SeededChances(2**64 - 1), (DRAW, 1, 3)) == pytest.approx(0.291851801, abs=1e-9)


def test_numbers_are_uniform_and_those_of_different_names_have_nothing_in_common() -> None:
    chances = SeededChances(3)
    names: list[Name] = [(kind, place, turn) for kind in (1, 2, 3) for place in range(400) for turn in (0, 1)]
    numbers = np.array([uniform(chances, name) for name in names])
    counts = np.histogram(numbers, bins=16, range=(0, 1))[0]
    expected = len(names) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 39.7  # chi-square, 15 degrees, one in 2000
    pairs = numbers.reshape(-1, 2)
    assert abs(np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1]) < 4 / np.sqrt(len(pairs))


def test_numbers_are_not_those_of_the_noise() -> None:
    """Which decide the target's own choices: a draft that knew them would be no independent one."""
    chances = SeededChances(11)
    numbers = [uniform(chances, (SAMPLE, position)) for position in range(500)]
    noise = [int(noise_bits(11, position, np.arange(1))[0]) / 2**64 for position in range(500)]
    assert abs(np.corrcoef(numbers, noise)[0, 1]) < 4 / np.sqrt(500)


WEIGHTS = st.lists(st.sampled_from([0.0, 1e-300, 0.1, 1 / 3, 1.0, 7.0]), min_size=1, max_size=8).filter(any)


@given(WEIGHTS, st.floats(0, 1, exclude_max=True))
def test_a_picked_index_has_a_weight(weights: list[float], number: float) -> None:
    assert weights[cell(np.array(weights), number)] > 0


def test_rounding_leads_to_no_weight_of_0_behind_the_last() -> None:
    """Where the number's product with the sum is rounded up to the sum."""
    for count in range(2, 60):
        weights = np.array([0.1] * count + [0.0])
        assert cell(weights, float(np.nextafter(1.0, 0.0))) == count - 1


def test_every_cell_is_as_wide_as_its_weight() -> None:
    weights = np.array([0.0, 3.0, 0.0, 1.0, 4.0, 0.0])
    picked = [cell(weights, (step + 0.5) / 800) for step in range(800)]
    assert {token: len(list(group)) for token, group in itertools.groupby(picked)} == {1: 300, 3: 100, 4: 400}


def test_a_number_is_below_a_bound_as_often_as_the_bound_says_and_picks_the_same_side() -> None:
    """`below` and `pick` are two views of one number."""
    for seed in range(200):
        chances = SeededChances(seed)
        assert chances.below((SAMPLE, 1), 0.3) == (chances.pick((SAMPLE, 1), np.array([0.3, 0.7])) == 0)


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


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (Draft((1, 2), (256,)), "2 tokens and 1 counts"),
        (Draft((), ()), "0 tokens"),
        (Draft(tuple(range(65)), (1,) * 65), "65 tokens"),
        (Draft((2, 1), (100, 156)), "do not increase"),
        (Draft((1, 1), (100, 156)), "do not increase"),
        (Draft((1, 2), (0, 256)), "counts from 0"),
        (Draft((1, 2), (100, 100)), "sum to 200"),
    ],
)
def test_a_bad_draft_is_explained(draft: Draft, words: str) -> None:
    problem = draft.problem()
    assert problem is not None
    assert words in problem


def test_the_chances_of_the_remaining_tokens_sum_to_1() -> None:
    draft = Draft((3, 5, 8), (128, 64, 64))
    tokens, chances = draft.after((5,))
    assert (tokens.tolist(), chances.tolist()) == ([3, 8], [2 / 3, 1 / 3])
    assert [len(each) for each in draft.after((3, 5, 8))] == [0, 0]


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
