"""Random numbers by name: the n-th draw of a stream is the same whoever asks, and in whatever order.

Schemes that are compared draw different numbers of numbers. With a generator they would soon live in
different worlds; a counter-based stream gives each of them the same delay for its n-th message and the same
draft at every position of the text (common random numbers). SplitMix64, as in `common.noise`.
"""

from __future__ import annotations

import math
from enum import IntEnum

from common.noise import noise_key, noise_output, noise_stream

TO_UNIT = 2.0**-53


class Stream(IntEnum):
    """What is drawn. The numbers are part of what a seed means: a new one is added at the end."""

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


class Draws:
    """The draws of one world's seed for one owner (a session, a link)."""

    def __init__(self, seed: int, owner: int = 0) -> None:
        seed = noise_key(seed, owner)
        self._streams = {stream: noise_stream(noise_key(seed, int(stream))) for stream in Stream}

    def bits(self, stream: Stream, counter: int) -> int:
        """64 of them."""
        return noise_output(self._streams[stream], counter)

    def uniform(self, stream: Stream, counter: int) -> float:
        """In [0, 1), a multiple of 2**-53."""
        return (noise_output(self._streams[stream], counter) >> 11) * TO_UNIT

    def normal(self, stream: Stream, counter: int) -> float:
        """Mean 0, variance 1 (Box and Muller 1958)."""
        bits = noise_output(self._streams[stream], counter)
        radius, angle = ((bits >> 32) + 1) * 2.0**-32, (bits & 0xFFFFFFFF) * 2.0**-32
        return math.sqrt(-2.0 * math.log(radius)) * math.cos(2.0 * math.pi * angle)
