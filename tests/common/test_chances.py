"""Laws of named numbers: a name has one, they are uniform and independent, what they pick has its chance."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chances import ACCEPT, BLOCK, DRAW, SAMPLE, Name, SeededChances, cell
from common.noise import UNIFORM_BITS

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
