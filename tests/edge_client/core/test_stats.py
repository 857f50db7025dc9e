"""Law: the acceptance length is committed tokens per target step, and 0 before the first."""

from __future__ import annotations

from edge_client.core.stats import SessionStats


def test_the_acceptance_length_is_tokens_per_step() -> None:
    assert SessionStats().acceptance_length == 0.0
    assert SessionStats(committed=7, target_steps=2).acceptance_length == 3.5
