"""Make named uniform random numbers, so that two machines, or a retry, draw the same.

A number is a pure function of (seed, name), made like the noise (`common.noise`), without an order or a
memory. Callers get only decisions and never the number, so that a test can try every possible decision and
add up their chances exactly (tests/worlds/enumeration.py).

An exact law needs numbers that are independent of all earlier decisions. So a name holds purpose and place:

    DRAW    node, turn        the edge: which token the turn-th child of a node gets
    ACCEPT  position, turn    the verifier: whether the turn-th child for a position is accepted
    BLOCK   position, depth   the verifier: whether the block that begins there is accepted down to a depth
    SAMPLE  position          the verifier: which token it writes there itself
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from common.noise import MASK_64, UNIFORM_BITS, noise_output, noise_stream

FloatArray = NDArray[np.float64]
Name = tuple[int, ...]

DRAW: Final = 1
ACCEPT: Final = 2
BLOCK: Final = 3
SAMPLE: Final = 4

OWN_STREAM = 0xB5AD4ECEDA1CE2A9
"""Constant combined with the seed, so that no number equals one of the noise. It is arbitrary: that of
Widynski's middle square generator (2017)."""


class Chances(Protocol):
    """Gives each name one uniform number in (0, 1), independent of all others."""

    def below(self, name: Name, bound: float) -> bool: ...

    def pick(self, name: Name, weights: FloatArray) -> int:
        """Return index i with chance `weights[i]` / sum; weights are >= 0, and an index of weight 0 is never
        picked."""
        ...


class SeededChances:
    """Derives each name's number from a 64-bit seed: the midpoint of one of 2**52 equal cells."""

    def __init__(self, seed: int) -> None:
        self._stream = noise_stream((seed ^ OWN_STREAM) & MASK_64)

    def below(self, name: Name, bound: float) -> bool:
        return self._uniform(name) < bound

    def pick(self, name: Name, weights: FloatArray) -> int:
        return cell(weights, self._uniform(name))

    def _uniform(self, name: Name) -> float:
        bits = self._stream
        for number in name:
            bits = noise_output(bits, number)
        return ((bits >> (64 - UNIFORM_BITS)) + 0.5) * 2.0**-UNIFORM_BITS


def cell(weights: FloatArray, uniform: float) -> int:
    """Return the index whose cell holds `uniform`, in [0, 1), when the weights are laid side by side."""
    ends = np.cumsum(weights)
    last = int(ends.searchsorted(ends[-1]))  # the last weight above 0; rounding must not lead beyond
    return min(int(ends.searchsorted(uniform * ends[-1], side="right")), last)
