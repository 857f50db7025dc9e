"""Says what the load of a target does now, as it may take minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two lines about the same work."""


class Progress(Protocol):
    """Takes the work that begins or goes on."""

    def __call__(self, work: str, share: float | None = None) -> None:
        """Tell of `work`, the rest of a sentence ("loading the weights"), of which `share` is done: 0 to 1;
        None: unknown. It may be called often, from one thread at a time."""
        ...


def no_progress(work: str, share: float | None = None) -> None:
    """Say nothing."""


class LoggedProgress:
    """Logs each work as it begins, and its share every `EVERY` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._work = ""
        self._logged_at = 0.0

    def __call__(self, work: str, share: float | None = None) -> None:
        now, is_new = self._clock(), work != self._work
        if not is_new and (share is None or now < self._logged_at + EVERY):
            return
        self._work, self._logged_at = work, now
        if share:
            logger.info("> %s: %.0f %%", work, 100.0 * share)
        else:
            logger.info("> %s", work)
