"""Sums over all texts since the daemon began: what the metrics page shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.messages import FinishReason
from edge_client.daemon.figures import TextFigures

SUMMED = (
    "tokens",
    "accepted",
    "device_tokens",
    "proposed",
    "wasted",
    "target_steps",
    "elapsed_ms",
    "waited_ms",
    "draft_ms",
    "queue_ms",
    "step_ms",
    "network_ms",
    "bytes_up",
    "bytes_down",
    "resumes",
)
"""Figures of a text that add up."""


@dataclass(slots=True)
class Totals:
    """Of the texts that have ended."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0.0))
    ended: dict[str, int] = field(default_factory=dict)  # texts, by why they ended

    def add(self, figures: TextFigures, finish: FinishReason | None) -> None:
        """One more text. `finish` None: an error or its client ended it."""
        for name in SUMMED:
            self.sums[name] += getattr(figures, name)
        reason = finish.name.lower() if finish is not None else "broken off"
        self.ended[reason] = self.ended.get(reason, 0) + 1
