"""What the simulator tells beside the shared figures: spreads, rates and waste."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.figures import window_paces
from simulator.results import SessionResult

MS = 1000.0  # in a second

PERCENTS = (1, 2, *range(5, 96, 5), 98, 99, 99.5, 99.9)
"""Which percentiles of latencies are kept: even steps, and finer at the ends."""

GAP, WINDOW = "gap", "window"
KINDS = (GAP, WINDOW)
"""Latencies of two kinds, both in ms. A gap lies between a token's arrival at the user and the next one's; it
is 0 between tokens of one commit. A window is the mean gap of 16 tokens in a row, the pace a reader feels."""

Latencies = dict[str, tuple[float, ...]]
"""By kind, one value per percentile of `PERCENTS`; empty where no session has two tokens."""


@dataclass(frozen=True, slots=True)
class Measures:
    """One scheme over all sessions of all seeds. Per token means per committed token.

    Rates are tokens per second after a session's first token. Draft tokens are unused if they were sent and
    never became text. A target step of n accepted nodes yields n + 1 tokens from as many rows; the others
    are unused. So are rows of the draft model that proposed no accepted token.
    """

    session_rate_p10: float  # a tenth of the sessions is slower
    session_rate_p50: float
    session_rate_p90: float
    ttft_ms_p95: float
    unused_draft_tokens_per_token: float
    unused_target_rows_per_token: float
    unused_draft_rows_per_token: float


def measures(sessions: Sequence[SessionResult]) -> Measures:
    """Rates are NaN if no session has two tokens that came apart."""
    rates = [rate for rate in map(_rate, sessions) if rate is not None] or [math.nan]
    slow, usual, fast = (float(each) for each in np.percentile(rates, (10, 50, 90)))
    tokens = sum(len(session.tokens) for session in sessions)
    accepted = sum(session.stats.accepted for session in sessions)
    proposed = sum(session.stats.proposed for session in sessions)
    evaluated = sum(session.stats.evaluated for session in sessions)
    return Measures(
        session_rate_p10=slow,
        session_rate_p50=usual,
        session_rate_p90=fast,
        ttft_ms_p95=float(np.percentile([MS * session.arrivals[0] for session in sessions], 95)),
        unused_draft_tokens_per_token=max(0, proposed - accepted) / tokens,  # a device alone sends none
        unused_target_rows_per_token=max(0, evaluated - tokens) / tokens,  # and asks for none
        unused_draft_rows_per_token=(sum(each.stats.drafted for each in sessions) - accepted) / tokens,
    )


def latencies(sessions: Sequence[SessionResult]) -> Latencies:
    """Percentiles over all sessions; each is a latency that occurred, none lies between two that did."""
    arrivals = [MS * np.asarray(session.arrivals) for session in sessions]
    samples = {
        GAP: np.concatenate([np.diff(each) for each in arrivals]),
        WINDOW: np.concatenate([window_paces(each.tolist()) for each in arrivals]),
    }
    return {kind: _percentiles(found) for kind, found in samples.items()}


def _percentiles(samples: np.ndarray) -> tuple[float, ...]:
    if not len(samples):
        return ()
    return tuple(float(each) for each in np.percentile(samples, PERCENTS, method="inverted_cdf"))


def _rate(session: SessionResult) -> float | None:
    span = session.arrivals[-1] - session.arrivals[0]
    return (len(session.arrivals) - 1) / span if span > 0 else None
