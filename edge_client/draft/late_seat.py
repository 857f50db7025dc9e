"""Defines the seats at a draft model, in which the draft steps of a text run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from common.errors import ForerunError, LocalError
from edge_client.core.effects import NOTHING_READ, Drafted, DraftEffect, Expand

logger = logging.getLogger(__name__)


class Drafts(Protocol):
    """Runs the draft steps of one generation."""

    def submit(self, effect: DraftEffect, on_drafted: Drafted) -> None:
        """Carry out the effect before all later effects. After a draft step `on_drafted` is called, in the
        thread of the running event loop."""


class DraftSeat(Drafts, Protocol):
    """Reserves a place at the draft model for one text."""

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` the draft model has already evaluated."""

    def release(self) -> None:
        """Give the seat back."""


class LateSeat:
    """Stands in for a seat while the draft model is loading. The text begins without drafts.

    It queues the text's effects in order until `coming` yields the seat. On failure it calls `on_refused`
    with the reason. The queue stays short: a text has one draft step under way. One event loop drives it."""

    def __init__(self, coming: asyncio.Task[DraftSeat], on_refused: Callable[[ForerunError], None]) -> None:
        self._coming = coming
        self._on_refused = on_refused
        self._seat: DraftSeat | None = None
        self._refusal: ForerunError | None = None
        self._waiting: list[tuple[DraftEffect, Drafted]] = []
        self._is_released = False
        coming.add_done_callback(self._arrived)

    def submit(self, effect: DraftEffect, on_drafted: Drafted) -> None:
        if self._seat is not None:
            self._seat.submit(effect, on_drafted)
        elif self._refusal is None:
            self._waiting.append((effect, on_drafted))
        elif isinstance(effect, Expand):
            asyncio.get_running_loop().call_soon(on_drafted, self._refusal, NOTHING_READ)

    def num_kept(self, tokens: Sequence[int]) -> int:
        return self._seat.num_kept(tokens) if self._seat is not None else 0

    def release(self) -> None:
        """End the text. A seat that arrives later is given back at once."""
        self._is_released = True
        self._waiting.clear()
        if self._seat is not None:
            self._seat.release()
        else:
            self._coming.cancel()

    def _arrived(self, coming: asyncio.Task[DraftSeat]) -> None:
        if coming.cancelled():
            return
        error = coming.exception()
        if error is not None:
            self._refuse(error)
        elif self._is_released:
            coming.result().release()
        else:
            self._seat = coming.result()
            for each in self._waiting:
                self._seat.submit(*each)
            self._waiting.clear()

    def _refuse(self, error: BaseException) -> None:
        if not isinstance(error, ForerunError):
            logger.error("! no seat at the draft model", exc_info=error)
            error = LocalError("a defect of the edge; its log has more")
        self._refusal = error
        steps = [on_drafted for effect, on_drafted in self._waiting if isinstance(effect, Expand)]
        self._waiting.clear()
        if not self._is_released:
            self._on_refused(error)
            for on_drafted in steps:
                on_drafted(error, NOTHING_READ)
