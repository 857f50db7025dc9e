"""Budgets and what follows from how much of one is used."""

import pytest

from demo_models.schedule import Budget, Progress, context_length, learning_rate_factor


def test_a_budget_is_either_steps_or_seconds() -> None:
    with pytest.raises(ValueError, match="either"):
        Budget()
    with pytest.raises(ValueError, match="either"):
        Budget(num_steps=1, seconds=1.0)


def test_progress_by_steps_does_not_look_at_the_clock() -> None:
    progress = Progress(Budget(num_steps=4))
    fractions = []
    for _ in range(6):
        fractions.append(progress.fraction)
        progress.num_steps += 1
    assert fractions == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_learning_rate_rises_stays_and_falls() -> None:
    assert learning_rate_factor(0.0) == pytest.approx(0.1)
    assert learning_rate_factor(0.02) == 1.0
    assert learning_rate_factor(0.3) == 1.0
    assert learning_rate_factor(0.675) == pytest.approx(0.515)
    assert learning_rate_factor(1.0) == pytest.approx(0.03)


def test_windows_grow_near_the_end() -> None:
    assert [context_length(fraction) for fraction in (0.0, 0.8, 0.85, 1.0)] == [512, 512, 1024, 1024]
