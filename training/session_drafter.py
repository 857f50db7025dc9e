"""The interface of a draft model that follows one text, as recording and training drive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, ReadingTime, Reroot


class SessionDrafter(Protocol):
    """Runs the draft model for one session at a time. One thread calls it."""

    @property
    def reading(self) -> ReadingTime:
        """The committed tokens that the latest `expand` read."""
        ...

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """Begin anew on a prompt's token ids; the last is the tip, node id `tip`. With `plain` above 0 rank
        that many candidates without the noise; with 0 the drafter's own number, with the noise."""
        ...

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        """Evaluate the rows, in one batch if possible; return the answers in the order of `rows`."""
        ...

    def reroot(self, change: Reroot) -> None:
        """Keep the nodes below the new tip, free the rest. Cheap: no model evaluation."""
        ...
