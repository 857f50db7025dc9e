"""Reports an experiment's outcomes: as the rows of a table, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.experiment import (
    SchemeOutcome,
    as_dict,
    distance_to_bound,
    mean_speedup,
    percentiles,
)
from simulator.figures import KINDS
from simulator.files import Experiment
from simulator.link_spec import LinkSpec

TITLES = (
    *("scheme", "ms/token", "p95", "ttft ms", "x streaming", "x bound"),
    *("steps", "rows", "drafted", "up B", "down B"),
)


def heading(experiment: Experiment) -> str:
    """Return a line about the experiment's world."""
    world = experiment.world
    one = f"{_network(world.link)}, target step {world.verifier.step_time * 1e3:g} ms"
    several = f"{len(world.sites)} verifiers, association {world.association}"
    return (
        f"{several if world.sites else one}, draft step "
        f"{world.device.draft_step_time(1) * 1e3:g} ms, acceptance {world.draft.mean:g}, "
        f"{world.num_sessions} session(s), {experiment.repeats} seeds"
    )


def table_rows(outcomes: Sequence[SchemeOutcome]) -> list[list[str]]:
    """Return the cells of each scheme, under `TITLES`."""
    return [_row(outcomes, each) for each in outcomes]


def _row(outcomes: Sequence[SchemeOutcome], outcome: SchemeOutcome) -> list[str]:
    figures = outcome.figures
    return [
        _shown(outcome),
        f"{figures.ms_per_token:.2f}"
        + (f" ± {outcome.standard_error:.2f}" if len(outcome.paces) > 1 else ""),
        f"{figures.ms_per_token_p95:.1f}",
        f"{figures.ttft_ms:.0f}",
        _or_dash(mean_speedup(outcomes, outcome.scheme)),
        _or_dash(distance_to_bound(outcomes, outcome.scheme)),
        f"{figures.target_steps_per_token:.2f}",
        f"{figures.evaluated_nodes_per_token:.1f}",
        f"{figures.draft_tokens_per_token:.1f}",
        f"{figures.bytes_up_per_token:.0f}",
        f"{figures.bytes_down_per_token:.0f}",
    ]


def _network(link: LinkSpec) -> str:
    return f"RTT {link.rtt * 1e3:g} ms" if link.trace is None else f"trace {link.trace.name}"


def _shown(outcome: SchemeOutcome) -> str:
    name = outcome.scheme if outcome.scheme == outcome.policy else f"{outcome.scheme} ({outcome.policy})"
    return name if outcome.figures.identical else f"{name} *"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def report_json(path: Path, experiment: Experiment, outcomes: Sequence[SchemeOutcome]) -> dict[str, Any]:
    """Return a world's settings and the figures of each scheme."""
    world = experiment.world
    settings = {
        "world": str(path),
        "rtt_ms": None if world.sites or world.link.trace is not None else round(world.link.rtt * 1e3, 6),
        "seed": world.seed,
        "repeats": experiment.repeats,
        "tokens": world.tokens,
        "sessions": world.num_sessions,
    }
    schemes = {
        outcome.scheme: {
            **as_dict(outcome),
            "latencies_ms": {kind: percentiles(outcome, kind) for kind in KINDS},
        }
        for outcome in outcomes
    }
    return {"settings": settings, "schemes": schemes}
