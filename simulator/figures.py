"""Turns runs into figures: the keys that demo, benchmarks and simulator share (lab/measured/README.md), and
those of the simulator alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edge_client.core.effects import SessionStats

DIGITS = 3  # of a figure behind the point: more than a measurement can say

WINDOW_TOKENS = 16
"""Tokens per sample of ms per token. Tokens of one commit come at once, so single gaps say little; a window
of 16 is about half a line of text, over which a reader feels the pace."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds the figures of one scheme on all its prompts. Per token means per committed token.

    The paces, `ms_per_token` and its percentiles, are NaN if no text has two tokens.
    """

    ms_per_token: float  # all tokens after each text's first, over the time they took
    ms_per_token_p50: float  # of windows of 16 tokens
    ms_per_token_p95: float
    ttft_ms: float  # median time to the first token
    target_steps_per_token: float
    evaluated_nodes_per_token: float  # target rows, tips included
    draft_tokens_per_token: float  # sent to the verifier
    draft_evaluations_per_token: float  # draft model rows
    acceptance_length: float  # committed tokens per target step; 0 where the target takes none
    bytes_up_per_token: float  # on the link: HTTP/2 and the prompt included
    bytes_down_per_token: float
    identical: bool  # every text is the target's alone


def figures(runs: Sequence[dict[str, Any]], references: Sequence[Any]) -> Figures:
    """Compute figures from one scheme's runs; `references` are the target's own texts, in order: characters
    of measured runs, tokens of simulated ones."""
    count = sum(len(run["arrivals_ms"]) for run in runs)
    windows = np.concatenate([window_paces(run["arrivals_ms"]) for run in runs])
    usual, slow = np.percentile(windows, (50, 95)) if len(windows) else (math.nan, math.nan)
    keys = ("target_steps", "evaluated", "proposed", "drafted")
    total = {key: sum(run["stats"][key] for run in runs) for key in keys}
    return Figures(
        ms_per_token=pace(runs),
        ms_per_token_p50=float(usual),
        ms_per_token_p95=float(slow),
        ttft_ms=float(np.median([run["arrivals_ms"][0] for run in runs])),
        target_steps_per_token=total["target_steps"] / count,
        evaluated_nodes_per_token=total["evaluated"] / count,
        draft_tokens_per_token=total["proposed"] / count,
        draft_evaluations_per_token=total["drafted"] / count,
        acceptance_length=count / total["target_steps"] if total["target_steps"] else 0.0,
        bytes_up_per_token=sum(run["link_bytes_up"] for run in runs) / count,
        bytes_down_per_token=sum(run["link_bytes_down"] for run in runs) / count,
        identical=all(run["text"] == text for run, text in zip(runs, references, strict=True)),
    )


def pace(runs: Sequence[dict[str, Any]]) -> float:
    """Return ms per token: the time after each first token, over the tokens after it (a ratio of sums).

    NaN if no text has two tokens.
    """
    spans = sum(run["arrivals_ms"][-1] - run["arrivals_ms"][0] for run in runs)
    later = sum(len(run["arrivals_ms"]) - 1 for run in runs)
    return float(spans / later) if later else math.nan


def window_paces(arrivals: Sequence[float]) -> np.ndarray:
    """Return ms per token over each stretch of `WINDOW_TOKENS` of one text; of a shorter text over all."""
    times = np.asarray(arrivals, dtype=np.float64)
    width = min(WINDOW_TOKENS, len(times) - 1)
    if width < 1:
        return np.zeros(0)
    paces: np.ndarray = (times[width:] - times[:-width]) / width
    return paces


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that `percent` of all do not exceed; None of none."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else None


def as_json(result: Figures) -> dict[str, Any]:
    """Return the figures with their shared keys, each `rounded`."""
    return {
        key: value if isinstance(value, bool) else rounded(value) for key, value in asdict(result).items()
    }


def rounded(value: float) -> float | None:
    """Round to the precision of a measurement; NaN becomes None, as JSON has no NaN."""
    return None if math.isnan(value) else round(value, DIGITS)


# Simulated sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionResult:
    """Holds a simulated session. Times count in seconds since its begin."""

    tokens: tuple[int, ...]
    truth: tuple[int, ...]  # what the target alone writes
    arrivals: tuple[float, ...]  # one per token
    stats: SessionStats
    bytes_up: int
    bytes_down: int

    def as_run(self) -> dict[str, Any]:
        """Return the run as `figures` reads it, times in milliseconds."""
        return {
            "text": self.tokens,
            "arrivals_ms": [1e3 * arrival for arrival in self.arrivals],
            "stats": asdict(self.stats),
            "link_bytes_up": self.bytes_up,
            "link_bytes_down": self.bytes_down,
        }


# What the simulator tells beside the shared figures: spreads, rates and waste.

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
    """Measures one scheme over all sessions of all seeds. Per token means per committed token.

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
    """Measure the runs. Rates are NaN if no session has two tokens at different times."""
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
    """Return percentiles over all sessions; each is a latency that occurred, without interpolation."""
    arrivals = [MS * np.asarray(session.arrivals) for session in sessions]
    samples = {
        GAP: np.concatenate([np.diff(each) for each in arrivals]),
        WINDOW: np.concatenate([window_paces(each.tolist()) for each in arrivals]),
    }
    return {kind: _percentiles(values) for kind, values in samples.items()}


def _percentiles(samples: np.ndarray) -> tuple[float, ...]:
    if not len(samples):
        return ()
    return tuple(float(each) for each in np.percentile(samples, PERCENTS, method="inverted_cdf"))


def _rate(session: SessionResult) -> float | None:
    span = session.arrivals[-1] - session.arrivals[0]
    return (len(session.arrivals) - 1) / span if span > 0 else None
