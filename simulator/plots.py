"""Plots of sweeps. matplotlib comes with the extra `simulation` and is loaded only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from simulator.schemes import CLAIRVOYANT, FORERUN, SERVER_STREAMING, SYNC_BEST
from simulator.sweep import AXES, panels

COLOURS = {
    SERVER_STREAMING: "#7f7f7f",
    SYNC_BEST: "#d95f02",
    "chain": "#7570b3",
    FORERUN: "#1b9e77",
    CLAIRVOYANT: "#000000",
}
"""A scheme keeps its colour in every plot."""

SPARE = ("#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#1f78b4")
LABELS = {
    "rtt_ms": "network round trip, ms",
    "jitter_ms": "jitter (standard deviation, one way), ms",
    "mean": "acceptance of the draft's best token",
    "step_ms": "target step, ms",
    "draft_ms": "draft step, ms",
    "clients": "clients",
}
FORMATS = (".png", ".svg", ".pdf")


def plot_pace(rows: Sequence[dict[str, Any]], x: str, out: Path) -> None:
    """ms per token against `x`, a line per scheme, a panel for each combination of the other axes that vary.

    Bars are twice the standard error over seeds. Raises `UserError` if there is nothing to draw.
    """
    _check(rows, x, out)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "plots need matplotlib; install it with: pip install 'forerun[simulation]'"
        ) from error
    others = [axis for axis in AXES if axis in rows[0] and axis != x and len({row[axis] for row in rows}) > 1]
    groups = list(panels(rows, *others))
    figure = Figure(figsize=(5.2 * len(groups), 4.2), layout="constrained")
    schemes = list(dict.fromkeys(str(row["scheme"]) for row in rows))
    all_axes = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (values, inside) in zip(all_axes, groups, strict=True):
        for scheme in schemes:
            _line(axes, scheme, schemes, [row for row in inside if row["scheme"] == scheme], x)
        axes.set_xlabel(LABELS[x])
        axes.set_title(
            ", ".join(f"{LABELS[a]} {v:g}" for a, v in zip(others, values, strict=True)), fontsize=9
        )
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("ms per token")
    all_axes[0].legend(fontsize=8)
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise UserError(f"the plot cannot be written to {out}: {error.strerror}") from error


def _line(axes: Any, scheme: str, schemes: Sequence[str], rows: list[dict[str, Any]], x: str) -> None:
    rows = sorted(rows, key=lambda row: float(row[x]))
    spare = SPARE[schemes.index(scheme) % len(SPARE)]
    axes.errorbar(
        [row[x] for row in rows],
        [row["ms_per_token"] for row in rows],
        yerr=[2 * row["ms_per_token_standard_error"] for row in rows],
        label=scheme,
        color=COLOURS.get(scheme, spare),
        linestyle="--" if scheme == CLAIRVOYANT else "-",
        marker="o",
        markersize=3,
        capsize=2,
    )


def _check(rows: Sequence[dict[str, Any]], x: str, out: Path) -> None:
    if out.suffix not in FORMATS:
        raise UserError(f"the plot {out} ends in {out.suffix or 'nothing'}; use one of {', '.join(FORMATS)}")
    if not rows:
        raise UserError("the sweep has no finished cell yet: there is nothing to plot")
    if x not in rows[0] or x not in LABELS:
        known = [axis for axis in AXES if axis in rows[0]]
        raise UserError(f"the sweep did not vary {x!r}; it varied {', '.join(known)}")
