"""Laws of the simulator's own measures: percentiles that occurred, rates per session, waste that adds up."""

from __future__ import annotations

import math

import pytest

from edge_client.core.stats import SessionStats
from simulator.experiment import as_dict, percentiles, run_experiment
from simulator.files import Experiment
from simulator.measures import GAP, PERCENTS, WINDOW, latencies, measures
from simulator.results import SessionResult
from simulator.schemes import CLAIRVOYANT, FORERUN, SERVER_STREAMING
from simulator.world import World


def session(arrivals: tuple[float, ...], stats: SessionStats | None = None) -> SessionResult:
    text = (1,) * len(arrivals)
    return SessionResult(text, text, arrivals, stats or SessionStats(), 0, 0)


def test_gaps_within_a_commit_are_zero_and_no_percentile_lies_between() -> None:
    found = latencies([session((0.1, 0.1, 0.1, 0.2, 0.2))])
    by_percent = dict(zip(PERCENTS, found[GAP], strict=True))
    assert by_percent[50] == by_percent[75] == 0.0
    assert by_percent[80] == by_percent[99.9] == pytest.approx(100.0)
    assert found[WINDOW] == pytest.approx([25.0] * len(PERCENTS))


def test_a_single_token_has_no_latency_and_no_rate() -> None:
    assert latencies([session((0.1,))]) == {GAP: (), WINDOW: ()}
    found = measures([session((0.1,))])
    assert math.isnan(found.session_rate_p50)
    assert found.ttft_ms_p95 == pytest.approx(100.0)


def test_rates_are_of_sessions_not_of_tokens() -> None:
    sessions = [session(tuple(gap * n for n in range(11))) for gap in (0.1, 0.05, 0.02)]
    found = measures(sessions)
    assert found.session_rate_p10 == pytest.approx(12.0)
    assert found.session_rate_p50 == pytest.approx(20.0)
    assert found.session_rate_p90 == pytest.approx(44.0)


def test_waste_is_what_never_became_text() -> None:
    stats = SessionStats(committed=4, accepted=3, evaluated=10, proposed=9, drafted=7)
    found = measures([session((0.1, 0.2, 0.3, 0.4), stats)])
    assert found.unused_draft_tokens_per_token == 6 / 4
    assert found.unused_target_rows_per_token == 6 / 4
    assert found.unused_draft_rows_per_token == 4 / 4
    alone = SessionStats(committed=4)
    assert measures([session((0.1, 0.2, 0.3, 0.4), alone)]).unused_target_rows_per_token == 0


def test_streaming_wastes_nothing_and_the_bound_hardly_anything() -> None:
    schemes = (SERVER_STREAMING, CLAIRVOYANT, FORERUN)
    alone, bound, ours = run_experiment(Experiment(World(tokens=150), 2, schemes), workers=1)
    assert alone.measures.unused_target_rows_per_token == 0
    assert alone.measures.unused_draft_tokens_per_token == 0
    assert bound.measures.unused_target_rows_per_token < 0.1 < ours.measures.unused_target_rows_per_token
    assert set(percentiles(alone, GAP).values()) == {30.0}
    assert as_dict(alone)["session_rate_p50"] == pytest.approx(33.333)
