"""Laws of a histogram: every value is in one bucket, and a bound belongs to the bucket below it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.telemetry.histogram import Histogram, one_two_five

BOUNDS = (0.5, 1.0, 2.0)
values = st.lists(st.floats(0, 4), max_size=20)


@given(values)
def test_each_bucket_has_the_values_up_to_its_bound(found: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    histogram.add_all(found)
    expected = [(str(bound), sum(value <= bound for value in found)) for bound in BOUNDS]
    assert histogram.buckets() == [*expected, ("+Inf", len(found))]
    assert histogram.total == pytest.approx(sum(found))


@given(values)
def test_one_by_one_or_all_at_once_is_the_same(found: list[float]) -> None:
    one, all_at_once = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in found:
        one.add(value)
    all_at_once.add_all(found)
    assert one.counts == all_at_once.counts
    assert one.total == pytest.approx(all_at_once.total)


def test_a_copy_does_not_change() -> None:
    histogram = Histogram(BOUNDS)
    histogram.add(0.5)
    copy = histogram.copy()
    histogram.add(0.5)
    assert (copy.counts, copy.total) == ([1, 0, 0, 0], 0.5)


@pytest.mark.parametrize(
    ("most", "bounds"), [(1, (1,)), (10, (1, 2, 5, 10)), (199, (1, 2, 5, 10, 20, 50, 100))]
)
def test_one_two_five_ends_below_its_bound(most: int, bounds: tuple[int, ...]) -> None:
    assert one_two_five(most) == bounds
