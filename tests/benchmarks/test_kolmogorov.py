"""The two-sample test: known values, and that it finds what differs and nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.kolmogorov import chance, distance, tail


@pytest.mark.parametrize(
    ("scaled", "expected"), [(1.2238, 0.10), (1.3581, 0.05), (1.6276, 0.01), (1.9495, 0.001)]
)
def test_the_tail_has_the_values_of_the_tables(scaled: float, expected: float) -> None:
    assert tail(scaled) == pytest.approx(expected, rel=1e-3)


def test_the_tail_falls_from_one_to_nothing() -> None:
    values = [tail(each / 100) for each in range(300)]
    assert values[0] == 1.0
    assert values[-1] < 1e-7
    assert all(later <= sooner + 1e-12 for sooner, later in pairwise(values))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], 0.0),
        ([1, 2, 3], [4, 5], 1.0),
        ([1, 2, 3, 4], [3, 4, 5, 6], 0.5),
        ([1, 1, 1, 2], [1, 2, 2, 2], 0.5),
    ],
)
def test_the_distance_is_the_largest_gap(first: list[float], second: list[float], expected: float) -> None:
    assert distance(first, second) == distance(second, first) == expected


def test_of_one_law_one_sample_in_twenty_looks_unlikely() -> None:
    rng = np.random.default_rng(7)
    unlikely = sum(
        chance(rng.normal(size=100).tolist(), rng.normal(size=100).tolist()) < 0.05 for _ in range(1000)
    )
    assert 25 <= unlikely <= 75


def test_of_two_laws_it_finds_out() -> None:
    rng = np.random.default_rng(7)
    assert chance(rng.normal(size=100).tolist(), rng.normal(1.0, size=100).tolist()) < 1e-6
