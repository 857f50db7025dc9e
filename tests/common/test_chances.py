"""Laws of named numbers: a name has one, they are uniform and independent, what they pick has its chance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chances import ACCEPT, BLOCK, DRAW, SAMPLE, Name, SeededChances, cell
from common.noise import UNIFORM_BITS, noise_bits

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


@given(st.integers(0, 2**64 - 1), NAMES)
def test_a_number_lies_strictly_between_0_and_1(seed: int, name: Name) -> None:
    chances = SeededChances(seed)
    assert not chances.below(name, 0.0)
    assert chances.below(name, 1.0)


def test_the_number_of_a_name_is_fixed() -> None:
    """Another platform or version must draw the same, or a retry elsewhere would not be one."""
    assert uniform(SeededChances(7), (ACCEPT, 12, 0)) == pytest.approx(0.939985029, abs=1e-9)
    assert uniform(SeededChances(2**64 - 1), (DRAW, 1, 3)) == pytest.approx(0.291851801, abs=1e-9)


def test_numbers_are_uniform_and_those_of_different_names_have_nothing_in_common() -> None:
    chances = SeededChances(3)
    names: list[Name] = [(kind, place, turn) for kind in (1, 2, 3) for place in range(400) for turn in (0, 1)]
    found = np.array([uniform(chances, name) for name in names])
    counts = np.histogram(found, bins=16, range=(0, 1))[0]
    expected = len(names) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 39.7  # chi-square, 15 degrees, one in 2000
    pairs = found.reshape(-1, 2)
    assert abs(np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1]) < 4 / np.sqrt(len(pairs))


def test_numbers_are_not_those_of_the_noise() -> None:
    """Which decide the target's own choices: a draft that knew them would be no independent one."""
    chances = SeededChances(11)
    found = [uniform(chances, (SAMPLE, position)) for position in range(500)]
    noise = [int(noise_bits(11, position, np.arange(1))[0]) / 2**64 for position in range(500)]
    assert abs(np.corrcoef(found, noise)[0, 1]) < 4 / np.sqrt(500)


WEIGHTS = st.lists(st.sampled_from([0.0, 1e-300, 0.1, 1 / 3, 1.0, 7.0]), min_size=1, max_size=8).filter(any)


@given(WEIGHTS, st.floats(0, 1, exclude_max=True))
def test_what_is_picked_has_a_weight(weights: list[float], number: float) -> None:
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
