"""The observer: right where traces differ by kind, at chance where nothing differs."""

from __future__ import annotations

import pytest

from benchmarks.tap import Talk
from benchmarks.telling import accuracy, of_numbers, of_sizes, of_times


def talk(sizes: list[int], pause: float) -> Talk:
    seen = [(index * pause, size) for index, size in enumerate(sizes)]
    return Talk(up=[(0.0, 1024), *seen], down=seen)


def test_what_differs_by_kind_is_told() -> None:
    traces = [(kind, of_sizes(talk([size] * 5, 0.1))) for kind, size in (("a", 9), ("b", 20)) * 4]
    assert accuracy(traces) == 1.0


def test_where_nothing_differs_one_guesses() -> None:
    traces = [(kind, of_sizes(talk([64] * (5 + index), 0.1))) for index, kind in enumerate("abab")]
    assert accuracy(traces) == pytest.approx(1 / 3)
    assert of_numbers(talk([64] * 5, 0.1)) != of_numbers(talk([64] * 6, 0.1)), "their number is no size"
    assert of_times(talk([64] * 5, 0.125)) == of_times(talk([64] * 6, 0.125)), "nor a time"


def test_a_stream_without_frames_has_features_too() -> None:
    empty = Talk(up=[(0.0, 1024)])
    assert len(of_sizes(empty)) == len(of_sizes(talk([5, 6], 0.1)))
    assert len(of_times(empty)) == len(of_times(talk([5, 6], 0.1)))
