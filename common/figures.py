"""From runs to figures: the keys that demo, benchmarks and simulator share (docs/architecture.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

DIGITS = 3  # of a figure behind the point: more than a measurement can say

WINDOW = 16
"""Tokens per sample of ms per token. Tokens of one commit come at once, so single gaps say little; a window
of 16 is about half a line of text, over which a reader feels the pace."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One scheme on all its prompts. Per token means per committed token.

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


def figures(runs: Sequence[dict[str, Any]], references: Sequence[Sequence[int]]) -> Figures:
    """Figures of the `done` events of one scheme; `references` are the target's own texts, in that order."""
    count = sum(len(run["tokens"]) for run in runs)
    windows = np.concatenate([window_paces(run["arrivals_ms"]) for run in runs])
    usual, slow = np.percentile(windows, (50, 95)) if len(windows) else (math.nan, math.nan)
    total = {key: sum(run["stats"][key] for run in runs) for key in runs[0]["stats"]}
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
        identical=all(list(run["tokens"]) == list(text) for run, text in zip(runs, references, strict=True)),
    )


def pace(runs: Sequence[dict[str, Any]]) -> float:
    """ms per token: the time after each first token, over the tokens after it (a ratio of sums).

    NaN if no text has two tokens.
    """
    spans = sum(run["arrivals_ms"][-1] - run["arrivals_ms"][0] for run in runs)
    later = sum(len(run["tokens"]) - 1 for run in runs)
    return float(spans / later) if later else math.nan


def window_paces(arrivals: Sequence[float]) -> np.ndarray:
    """ms per token over each stretch of `WINDOW` tokens of one text; the whole text if it is shorter."""
    times = np.asarray(arrivals, dtype=np.float64)
    width = min(WINDOW, len(times) - 1)
    if width < 1:
        return np.zeros(0)
    paces: np.ndarray = (times[width:] - times[:-width]) / width
    return paces


def as_json(result: Figures) -> dict[str, Any]:
    """The figures with their shared keys, each `rounded`."""
    return {
        key: value if isinstance(value, bool) else rounded(value) for key, value in asdict(result).items()
    }


def rounded(value: float) -> float | None:
    """To what a measurement can say; None, which is JSON's null, for NaN, which JSON does not have."""
    return None if math.isnan(value) else round(value, DIGITS)
