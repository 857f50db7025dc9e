"""Figures of a load, on runs whose figures are known."""

from __future__ import annotations

from typing import Any

import pytest

from lab.bench.figures import medians, rates, ratio
from lab.bench.load import TextRun

STATS = {"target_steps": 2, "evaluated": 6, "proposed": 8, "proposes": 3, "drafted": 10}


def run(number: int, opened_at: float, arrivals: list[float], **more: Any) -> TextRun:
    return TextRun(number, opened_at, arrivals, finished=True, stats=dict(STATS), **more)


def test_tokens_per_second_count_from_the_beginning_to_the_last_token() -> None:
    runs = [run(0, 10.0, [1.0, 2.0]), run(1, 10.0, [1.0, 2.0, 4.0])]
    found = rates(runs, 10.0, clients=2)
    assert found["tokens_per_second"] == pytest.approx(5 / 4)
    assert found["tokens_per_second_busy"] == pytest.approx(4 / 2)  # until the first of two had no text left


def test_of_repeats_the_median_counts_and_texts_are_added() -> None:
    repeats = [
        {"tokens_per_second": rate, "texts": 2, "differences": [[0, 1]], "ttft_ms_p50": None}
        for rate in (10.0, 30.0, 20.0)
    ]
    found = medians(repeats)
    assert found["tokens_per_second"] == 20.0
    assert found["tokens_per_second_range"] == [10.0, 30.0]
    assert found["texts"] == 6
    assert found["differences"] == [[0, 1]] * 3
    assert found["ttft_ms_p50"] is None


def test_a_ratio_is_of_repeats_that_ran_side_by_side() -> None:
    own, other = ([{"x": value} for value in values] for values in ((2.0, 8.0, 9.0), (1.0, 2.0, 9.0)))
    assert ratio(own, other, "x") == 2.0  # the middle one of 2, 4 and 1
    assert ratio(own, other, "y") is None
