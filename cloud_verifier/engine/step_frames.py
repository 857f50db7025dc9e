"""What rank 0 tells the other ranks: a step as one line of integers, and three words.

A frame is a head of two integers, its kind and the length of what follows, and for a step that many int32. No
pickle travels: whoever could reach the port could otherwise run code here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from common.errors import LocalError
from common.sampling import SamplingParams

HEAD_LENGTH = 2
MAX_LENGTH = 2**28
"""Integers of a step at most (1 GiB): a head that asks for more is garbage."""

_COUNTS = 3  # of an item: prefix slots, rows, outputs
_GREEDY = SamplingParams()


class Kind(IntEnum):
    """What a frame is."""

    STEP = 1
    BEAT = 2  # nothing to do; rank 0 is alive
    END = 3  # go


def head_of(kind: Kind, length: int = 0) -> NDArray[np.int64]:
    """int64 [2]."""
    return np.array([kind, length], dtype=np.int64)


def read_head(head: Sequence[int]) -> tuple[Kind, int]:
    """The kind of a frame and how many int32 follow. Raises `LocalError` if it is none."""
    kind, length = head
    if kind not in set(Kind) or not 0 <= length <= MAX_LENGTH:
        raise LocalError(f"rank 0 sent a frame of kind {kind} and length {length}, which is none")
    return Kind(kind), length


def encode_items(items: Sequence[StepItem]) -> IntArray:
    """A step's items as int32 [N], without sampling: only rank 0 chooses."""
    parts: list[IntArray] = [np.array([len(items)], dtype=np.int32)]
    for item in items:
        counts = (len(item.prefix_slots), len(item.tokens), len(item.outputs))
        parts.append(np.array((item.session, *counts), dtype=np.int32))
        parts += [item.prefix_slots, item.tokens, item.positions, item.parents, item.slots, item.outputs]
    return np.concatenate(parts, dtype=np.int32)


def decode_items(line: IntArray) -> StepPlan:
    """The plan that `encode_items` wrote. Raises `LocalError` if the counts do not fit the line."""
    reader = _Reader(line)
    (num_items,) = reader.take(1)
    items = []
    for _ in range(num_items):
        session, prefix, rows, outputs = reader.take(1 + _COUNTS).tolist()
        items.append(
            StepItem(
                session=session,
                prefix_slots=reader.take(prefix),
                tokens=reader.take(rows),
                positions=reader.take(rows),
                parents=reader.take(rows),
                slots=reader.take(rows),
                outputs=reader.take(outputs),
                sampling=_GREEDY,
            )
        )
    reader.check_end()
    return StepPlan(tuple(items))


class _Reader:
    """Takes runs of integers off a line."""

    def __init__(self, line: IntArray) -> None:
        self._line = line
        self._at = 0

    def take(self, count: int) -> IntArray:
        end = self._at + count
        if not 0 <= count <= len(self._line) - self._at:
            raise LocalError(f"a step of {len(self._line)} integers ends before {end}")
        taken = self._line[self._at : end]
        self._at = end
        return taken

    def check_end(self) -> None:
        if self._at != len(self._line):
            raise LocalError(f"a step of {len(self._line)} integers goes on after {self._at}")
