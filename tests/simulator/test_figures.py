"""Figures from runs, with literal times; of simulated sessions also percentiles, rates and waste."""

from typing import Any

import numpy as np
import pytest

from edge_client.core.effects import SessionStats
from simulator.figures import (
    GAP,
    PERCENTS,
    WINDOW,
    SessionResult,
    figures,
    latencies,
    measures,
    pace,
    window_paces,
)

STATS = {"target_steps": 2, "evaluated": 6, "proposed": 8, "drafted": 5, "committed": 4, "accepted": 2}


def run(arrivals: list[float], tokens: list[int] | None = None) -> dict[str, Any]:
    return {
        "text": tokens or list(range(len(arrivals))),
        "arrivals_ms": arrivals,
        "stats": STATS,
        "link_bytes_up": 40,
        "link_bytes_down": 20,
    }


def test_pace_is_a_ratio_of_sums() -> None:
    assert pace([run([100.0, 110.0, 120.0]), run([50.0, 90.0])]) == pytest.approx((20.0 + 40.0) / 3)


def test_a_window_spans_sixteen_tokens() -> None:
    arrivals = [10.0 * index for index in range(20)]
    np.testing.assert_allclose(window_paces(arrivals), [10.0] * 4)
    np.testing.assert_allclose(window_paces([5.0, 25.0]), [20.0])
    assert len(window_paces([5.0])) == 0


def test_figures_count_per_committed_token() -> None:
    found = figures([run([100.0, 110.0, 130.0, 130.0])], [[0, 1, 2, 3]])
    assert found.ms_per_token == pytest.approx(10.0)
    assert found.ttft_ms == 100.0
    assert found.target_steps_per_token == 0.5
    assert found.evaluated_nodes_per_token == 1.5
    assert found.draft_tokens_per_token == 2.0
    assert found.draft_evaluations_per_token == 1.25
    assert found.acceptance_length == 2.0
    assert (found.bytes_up_per_token, found.bytes_down_per_token) == (10.0, 5.0)
    assert found.identical


# Simulated sessions


def session(arrivals: tuple[float, ...], stats: SessionStats | None = None) -> SessionResult:
    text = (1,) * len(arrivals)
    return SessionResult(text, text, arrivals, stats or SessionStats(), 0, 0)


def test_gaps_within_a_commit_are_zero_and_no_percentile_lies_between() -> None:
    found = latencies([session((0.1, 0.1, 0.1, 0.2, 0.2))])
    by_percent = dict(zip(PERCENTS, found[GAP], strict=True))
    assert by_percent[50] == by_percent[75] == 0.0
    assert by_percent[80] == by_percent[99.9] == pytest.approx(100.0)
    assert found[WINDOW] == pytest.approx([25.0] * len(PERCENTS))


def test_waste_is_what_never_became_text() -> None:
    stats = SessionStats(committed=4, accepted=3, evaluated=10, proposed=9, drafted=7)
    found = measures([session((0.1, 0.2, 0.3, 0.4), stats)])
    assert found.unused_draft_tokens_per_token == 6 / 4
    assert found.unused_target_rows_per_token == 6 / 4
    assert found.unused_draft_rows_per_token == 4 / 4
    alone = SessionStats(committed=4)
    assert measures([session((0.1, 0.2, 0.3, 0.4), alone)]).unused_target_rows_per_token == 0
