"""A seat at a draft model that is being loaded: the text begins without it, and drafts when it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from common.errors import ForerunError, LocalError
from edge_client.core.drafter import NOTHING_READ
from edge_client.core.effects import Expand, MoveTip, StartDrafter
from edge_client.draft_worker import Drafted, Drafts

logger = logging.getLogger(__name__)


class Seat(Drafts, Protocol):
    """A place at the draft model, for one text."""

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Leading ones of `tokens` that the draft model has evaluated already."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...


class LateSeat:
    """Keeps what the text asks for until `coming` brings the seat, in order; `on_refused` learns why none
    comes. A text has one draft step under way, so little waits beside the tip's moves. One event loop."""

    def __init__(self, coming: asyncio.Task[Seat], on_refused: Callable[[ForerunError], None]) -> None:
        self._coming = coming
        self._on_refused = on_refused
        self._seat: Seat | None = None
        self._refusal: ForerunError | None = None
        self._waiting: list[tuple[StartDrafter | MoveTip | Expand, Drafted | None]] = []
        self._is_released = False
        coming.add_done_callback(self._arrived)

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        if self._seat is not None:
            self._seat.submit(effect)
        elif self._refusal is None:
            self._waiting.append((effect, None))

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        if self._seat is not None:
            self._seat.expand(effect, on_drafted)
        elif self._refusal is not None:
            asyncio.get_running_loop().call_soon(on_drafted, self._refusal, NOTHING_READ)
        else:
            self._waiting.append((effect, on_drafted))

    def num_kept(self, tokens: Sequence[int]) -> int:
        return self._seat.num_kept(tokens) if self._seat is not None else 0

    def release(self) -> None:
        """The text is over; a seat that comes now is given back at once."""
        self._is_released = True
        self._waiting.clear()
        if self._seat is not None:
            self._seat.release()
        else:
            self._coming.cancel()

    def _arrived(self, coming: asyncio.Task[Seat]) -> None:
        if coming.cancelled():
            return
        error = coming.exception()
        if error is not None:
            self._refuse(error)
        elif self._is_released:
            coming.result().release()
        else:
            self._sit(coming.result())

    def _sit(self, seat: Seat) -> None:
        self._seat = seat
        waiting, self._waiting = self._waiting, []
        for effect, on_drafted in waiting:
            if isinstance(effect, Expand):
                assert on_drafted is not None, "kept with its step"
                seat.expand(effect, on_drafted)
            else:
                seat.submit(effect)

    def _refuse(self, error: BaseException) -> None:
        if not isinstance(error, ForerunError):
            logger.error("! no seat at the draft model", exc_info=error)
            error = LocalError("a defect of the edge; its log has more")
        self._refusal = error
        waiting, self._waiting = self._waiting, []
        if self._is_released:
            return
        self._on_refused(error)
        for _, on_drafted in waiting:
            if on_drafted is not None:
                on_drafted(error, NOTHING_READ)
