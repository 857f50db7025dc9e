"""How an engine's steps ran: what its metrics say of CUDA graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class StepCounts:
    """Steps so far."""

    graph: int = 0  # replayed
    eager: int = 0
    captures: int = 0  # graphs made
    reasons: Counter[str] = field(default_factory=Counter)  # why steps were eager, if graphs were asked for
