"""Laws: acceptance length is committed tokens per target step; step times add up by rows."""

from __future__ import annotations

from edge_client.core.stats import SessionStats, StepTimes


def test_the_acceptance_length_is_tokens_per_step() -> None:
    assert SessionStats().acceptance_length == 0.0
    assert SessionStats(committed=7, target_steps=2).acceptance_length == 3.5


def test_step_times_add_up_by_rows() -> None:
    times = StepTimes()
    for rows, seconds in ((1, 1.0), (4, 2.0), (1, 3.0)):
        times.add(rows, seconds)
    assert times == StepTimes(counts={1: 2, 4: 1}, totals={1: 4.0, 4: 2.0})
