"""Figures from runs, with literal times."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from common.figures import as_json, figures, pace, rounded, window_paces

STATS = {"target_steps": 2, "evaluated": 6, "proposed": 8, "drafted": 5, "committed": 4, "accepted": 2}


def run(arrivals: list[float], tokens: list[int] | None = None) -> dict[str, Any]:
    return {
        "tokens": tokens or list(range(len(arrivals))),
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


def test_a_short_text_is_one_window() -> None:
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


def test_a_text_of_one_token_has_no_pace_and_does_not_count_beside_others() -> None:
    alone = figures([run([100.0])], [[0]])
    for name in ("ms_per_token", "ms_per_token_p50", "ms_per_token_p95"):
        assert math.isnan(getattr(alone, name))
    assert (alone.ttft_ms, alone.identical) == (100.0, True)
    both = figures([run([100.0]), run([50.0, 90.0])], [[0], [0, 1]])
    assert (both.ms_per_token, both.ms_per_token_p50, both.ms_per_token_p95) == (40.0, 40.0, 40.0)


def test_what_is_no_number_is_null_in_json() -> None:
    found = as_json(figures([run([100.0])], [[0]]))
    assert json.loads(json.dumps(found, allow_nan=False))["ms_per_token_p95"] is None
    assert (rounded(math.nan), rounded(1.23456), rounded(0.0)) == (None, 1.235, 0.0)


def test_one_different_token_is_not_identical() -> None:
    runs = [run([1.0, 2.0]), run([1.0, 2.0], [0, 9])]
    assert not figures(runs, [[0, 1], [0, 1]]).identical


def test_the_shared_keys_are_those_of_the_docs() -> None:
    keys = set(as_json(figures([run([1.0, 2.0])], [[0, 1]])))
    assert keys >= {"ms_per_token_p50", "ms_per_token_p95", "ttft_ms", "target_steps_per_token", "identical"}
    assert keys >= {"evaluated_nodes_per_token", "draft_tokens_per_token"}
    assert keys >= {"bytes_up_per_token", "bytes_down_per_token"}
