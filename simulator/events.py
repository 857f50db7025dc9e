"""Keeps virtual time: a heap of (when, order, action), as in SimPy's event loop."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import IntEnum

from common.errors import LocalError
from common.noise import noise_key, noise_output, noise_stream

Action = Callable[[], None]


class EventHeap:
    """Holds planned actions. Actions at one moment run in the order in which they were planned.

    `now` is in seconds from the world's beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = 0

    def at(self, when: float, action: Action) -> None:
        """Plan an action. Raises `LocalError` for a moment that has passed."""
        if not when >= self.now:
            raise LocalError(f"an event is planned for {when}, and it is {self.now} already")
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, action))

    def after(self, delay: float, action: Action) -> None:
        """Plan an action `delay` seconds from now."""
        self.at(self.now + delay, action)

    def run(self) -> None:
        """Run everything that is planned, and what follows from it; `now` ends at the last moment."""
        heap = self._heap
        while heap:
            self.now, _, action = heapq.heappop(heap)
            action()


# Random numbers by name: the n-th draw of a stream is the same whoever asks, and in whatever order.
#
# Schemes that are compared draw different numbers of numbers. With a generator they would soon live in
# different worlds; a counter-based stream gives each of them the same delay for its n-th message and the
# same draft at every position of the text (common random numbers). SplitMix64, as in `common.noise`.

TO_UNIT = 2.0**-53


class DrawStream(IntEnum):
    """Names the streams of draws. The numbers are part of a seed's meaning: append new ones at the end."""

    CONFIDENCE = 1
    RANK = 2
    OFF_PATH = 3
    UPLINK = 4
    DOWNLINK = 5
    LOSS_UP = 6
    LOSS_DOWN = 7
    ARRIVAL = 8
    HANDOVER = 9
    KIND = 10
    HEAD_CONFIDENCE = 11
    HEAD_RANK = 12
    HEAD_LIKENESS = 13
    SMALL_DRAFT = 14
    MIDDLE_CONFIDENCE = 15
    MIDDLE_RANK = 16
    MIDDLE_LIKENESS = 17
    MIDDLE_OFF_PATH = 18
    HINT = 19
    SITE = 20
    MASK = 21


class Draws:
    """Draws numbers from one world's seed for one owner (a session, a link)."""

    def __init__(self, seed: int, owner: int = 0) -> None:
        seed = noise_key(seed, owner)
        self._streams = {stream: noise_stream(noise_key(seed, int(stream))) for stream in DrawStream}

    def bits(self, stream: DrawStream, counter: int) -> int:
        """Return 64 random bits."""
        return noise_output(self._streams[stream], counter)

    def uniform(self, stream: DrawStream, counter: int) -> float:
        """Draw a multiple of 2**-53 in [0, 1)."""
        return (noise_output(self._streams[stream], counter) >> 11) * TO_UNIT

    def normal(self, stream: DrawStream, counter: int) -> float:
        """Draw from mean 0, variance 1 (Box and Muller 1958)."""
        bits = noise_output(self._streams[stream], counter)
        radius, angle = ((bits >> 32) + 1) * 2.0**-32, (bits & 0xFFFFFFFF) * 2.0**-32
        return math.sqrt(-2.0 * math.log(radius)) * math.cos(2.0 * math.pi * angle)
