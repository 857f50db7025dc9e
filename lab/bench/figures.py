"""Computes the figures of a load, and medians over repeats (lab/docs/capacity.md, "The report")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from lab.bench.load import TextRun
from lab.bench.stage import StageOutcome
from simulator.figures import pace, rounded, window_paces

Figures = dict[str, Any]

SHOWN_DIFFERENCES = 8
"""Most differing texts that are listed; all are counted."""

COUNTS = ("texts", "texts_different", "texts_compared", "refused", "failed")
"""Figures that are added up over repeats; of all others the median counts."""


def load_figures(outcome: StageOutcome, clients: int) -> Figures:
    """Return all figures of one load. "Per token" means per committed token; None means unknown."""
    runs = [run for run in outcome.runs if run.arrivals]
    return {
        **rates(runs, outcome.began_at, clients),
        **latencies(runs),
        **costs(runs),
        **verifier_figures(outcome.verifier),
        **ends(outcome.runs),
        "client_cpu": rounded(outcome.client_cpu),
    }


def rates(runs: Sequence[TextRun], began_at: float, clients: int) -> Figures:
    """Return tokens per second overall, and while no client had run out of texts.

    A figure is None without tokens.
    """
    if not runs:
        return {"tokens_per_second": None, "tokens_per_second_busy": None, "seconds": None}
    times = np.sort(np.concatenate([run.opened_at + np.asarray(run.arrivals) for run in runs])) - began_at
    busy_until = np.sort([run.ended_at for run in runs])[-clients] - began_at if len(runs) >= clients else 0.0
    busy = int(np.searchsorted(times, busy_until, side="right"))
    return {
        "tokens_per_second": rounded(len(times) / times[-1]),
        "tokens_per_second_busy": rounded(busy / busy_until) if busy_until > 0 else None,
        "seconds": rounded(times[-1]),
    }


def latencies(runs: Sequence[TextRun]) -> Figures:
    """Return latencies in ms: per token over windows of 16 tokens, between arrivals, and to the first
    token."""
    records = [{"arrivals_ms": [1e3 * at for at in run.arrivals]} for run in runs]
    windows = [window_paces(record["arrivals_ms"]) for record in records]
    pauses = [np.diff(np.unique(record["arrivals_ms"])) for record in records]
    firsts = [np.asarray(record["arrivals_ms"][:1]) for record in records]
    return {
        "ms_per_token": rounded(pace(records)) if records else None,
        **_percentiles("ms_per_token", windows),
        **_percentiles("gap_ms", pauses),
        **_percentiles("ttft_ms", firsts),
    }


def _percentiles(name: str, samples: Sequence[np.ndarray]) -> Figures:
    gaps = np.concatenate(samples) if samples else np.zeros(0)
    if not len(gaps):
        return {f"{name}_p50": None, f"{name}_p95": None}
    usual, slow = np.percentile(gaps, (50, 95))
    return {f"{name}_p50": rounded(float(usual)), f"{name}_p95": rounded(float(slow))}


def costs(runs: Sequence[TextRun]) -> Figures:
    """Return the costs of a token; `acceptance` is the measured acceptance of an oracle."""
    tokens = sum(len(run.arrivals) for run in runs)
    total = {key: sum(run.stats[key] for run in runs) for key in runs[0].stats} if runs else {}
    asked = sum(run.asked for run in runs)
    shares = {
        "target_steps_per_token": total.get("target_steps", 0),
        "evaluated_nodes_per_token": total.get("evaluated", 0),
        "draft_tokens_per_token": total.get("proposed", 0),
        "draft_messages_per_token": total.get("proposes", 0),
        "draft_evaluations_per_token": total.get("drafted", 0),
        "bytes_up_per_token": sum(run.bytes_up for run in runs),
        "bytes_down_per_token": sum(run.bytes_down for run in runs),
    }
    return {
        **{name: rounded(value / tokens) if tokens else None for name, value in shares.items()},
        "acceptance": rounded(sum(run.right for run in runs) / asked) if asked else None,
    }


def verifier_figures(told: Mapping[str, Any]) -> Figures:
    """Return figures of `Meter.take`: steps, and the share of their cycle outside the engine.

    `gap_share` is the share of a cycle, from a step's start to the next, in which the engine waited.
    `outside_cpu_share` is the share of the verifier's processor time outside the engine's steps.
    """
    steps, cycle = told["steps"], told["cycle_ms"]["mean"]
    return {
        "target_steps": steps,
        "rows_per_step": rounded(told["rows"] / steps) if steps else None,
        "step_ms": rounded(told["step_ms"]["mean"]) if steps else None,
        "step_ms_p95": rounded(told["step_ms"]["p95"]) if steps else None,
        "gap_ms_per_step": rounded(told["gap_ms"]["mean"]) if cycle else None,
        "gap_share": rounded(told["gap_ms"]["mean"] / cycle) if cycle else None,
        "outside_cpu_share": rounded(1.0 - told["engine_cpu_ms"] / told["cpu_ms"])
        if told["cpu_ms"]
        else None,
        "verifier_cpu": rounded(told["cpu_ms"] / told["wall_ms"]) if told["wall_ms"] else None,
    }


def ends(runs: Sequence[TextRun]) -> Figures:
    """Return how texts ended, and which differ from the reference."""
    different = [run for run in runs if run.finished and run.difference is not None]
    return {
        "texts": sum(run.finished for run in runs),
        "refused": sum(run.refused for run in runs),
        "failed": sum(not run.finished and not run.refused for run in runs),
        "texts_compared": sum(run.finished for run in runs),
        "texts_different": len(different),
        "differences": [[run.number, run.difference] for run in different[:SHOWN_DIFFERENCES]],
        "errors": sorted({run.error for run in runs if run.error and not run.refused})[:SHOWN_DIFFERENCES],
    }


def medians(repeats: Sequence[Figures]) -> Figures:
    """Merge the figures of several repeats: add counts, join lists, and take the median of others. Add the
    extremes of the rate."""
    joined: Figures = {}
    for key in dict.fromkeys(key for repeat in repeats for key in repeat):
        values = [repeat.get(key) for repeat in repeats]
        joined[key] = _joined(key, values)
    rates_seen = [repeat["tokens_per_second"] for repeat in repeats if repeat.get("tokens_per_second")]
    if rates_seen:
        joined["tokens_per_second_range"] = [min(rates_seen), max(rates_seen)]
    return joined


def _joined(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if key in COUNTS:
        return sum(known)
    if known and isinstance(known[0], list):
        return [each for value in known for each in value][:SHOWN_DIFFERENCES]
    if known and isinstance(known[0], int | float):
        return rounded(float(median(known)))
    return known[0] if known else None


def ratio(repeats: Sequence[Figures], others: Sequence[Figures], key: str) -> float | None:
    """Return the median ratio of a figure to that of `others`, over paired repeats; None if unknown."""
    pairs = [(one.get(key), other.get(key)) for one, other in zip(repeats, others, strict=False)]
    ratios = [one / other for one, other in pairs if one is not None and other]
    return rounded(float(median(ratios))) if ratios else None
