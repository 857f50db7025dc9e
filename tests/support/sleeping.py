"""A device that sleeps between a stream and its `Open`."""

from collections.abc import Callable, Collection
from typing import Any

from common.messages import ClientMessage
from edge_client.network.channel import VerifierChannel, VerifierStream


class SleepingChannel(VerifierChannel):
    """Sends nothing on the streams of these numbers, counted from 1. Calls `on_open` with each number."""

    def __init__(
        self, address: str, asleep: Collection[int], on_open: Callable[[int], None] = lambda number: None
    ) -> None:
        super().__init__(address)
        self._asleep, self._on_open = asleep, on_open
        self._number = 0

    def open(self, *args: Any, **named: Any) -> VerifierStream:
        stream = super().open(*args, **named)
        self._number += 1
        self._on_open(self._number)
        if self._number in self._asleep:
            stream.send = _lost  # type: ignore[method-assign]
        return stream


def _lost(message: ClientMessage) -> None:
    """Send nothing."""
