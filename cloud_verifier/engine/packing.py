"""Lays a step plan end to end: the arrays that one packed forward needs, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import IntArray, StepItem, StepPlan
from common.errors import LocalError
from common.sampling import SamplingParams

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedStep:
    """Holds all rows of a plan in one line, item after item. int64, because torch indexes with it."""

    items: tuple[StepItem, ...]
    starts: tuple[int, ...]  # [I + 1] packed row at which each item starts, and the number of rows T
    tokens: IndexArray  # [T]
    positions: IndexArray  # [T]
    slots: IndexArray  # [T]
    parents: IndexArray  # [T] packed row of the parent, or -1 where a row follows the prefix
    outputs: IndexArray  # [O] packed rows whose logits are wanted

    @property
    def num_rows(self) -> int:
        return self.starts[-1]


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Holds the limits of the model and the KV store, against which a plan is checked."""

    vocab_size: int
    max_positions: int
    num_slots: int


class PrefixMarks:
    """Marks the slots that prefixes read, so that a step looks only at what is new in its prefixes.

    What an array of slots has shown never changes, as it grows in place (`core.kv_memory.SlotList`). Marks of
    sessions that are gone stay until a row is to be written to one of them; then all are made anew.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._forget()

    def _forget(self) -> None:
        self._marked = np.zeros(self._num_slots, dtype=np.bool_)
        self._seen = dict[int, IntArray]()  # by session, the prefix whose slots are marked

    def check(self, items: Sequence[StepItem], written: IndexArray) -> None:
        """Raise `LocalError` if a prefix has a slot that there is not, or one that the step writes."""
        self._mark(items)
        if np.count_nonzero(self._marked[written]):
            self._forget()
            self._mark(items)
            if np.count_nonzero(self._marked[written]):
                raise _broken("a row is to be written to a slot that a prefix of this step reads")

    def _mark(self, items: Sequence[StepItem]) -> None:
        fresh = list[IntArray]()
        for item in items:
            slots, seen = item.prefix_slots, self._seen.get(item.session)
            grown = seen is not None and slots.base is not None and seen.base is slots.base
            fresh.append(slots[len(seen) :] if seen is not None and grown else slots)
        new = np.concatenate(fresh)
        if new.size:
            _check_within(new.view(np.uint32), self._num_slots)
            self._marked[new] = True
        self._seen.update((item.session, item.prefix_slots) for item in items)


def pack(plan: StepPlan, limits: StepLimits, marks: PrefixMarks | None = None) -> PackedStep:
    """Lay `plan` end to end. Raises `LocalError` that names the broken rule (`StepItem`'s docstring).

    `marks` of the steps before spare the check of what they have shown.
    """
    items = plan.items
    sizes = [(_num_rows(item), len(item.prefix_slots), len(item.outputs)) for item in items]
    counts, prefixes, wanted = np.array(sizes, np.int64).reshape(-1, 3).T
    ends = counts.cumsum()
    starts = ends - counts
    # All four at once: a call of numpy costs more than the few numbers in it.
    fields = [item.tokens for item in items]
    fields += [item.positions for item in items]
    fields += [item.parents for item in items]
    fields += [item.slots for item in items]
    tokens, positions, parents, slots = _join(fields).reshape(4, -1)
    packed = parents + starts.repeat(counts)
    packed[parents < 0] = -1
    outputs = _join([item.outputs for item in items]) + starts.repeat(wanted)
    step = PackedStep(items, (0, *ends.tolist()), tokens, positions, slots, packed, outputs)
    _check_outputs(step, starts.repeat(wanted), ends.repeat(wanted))
    if step.num_rows:
        _check_rows(step, parents, prefixes.repeat(counts), limits)
        _check_written(slots, limits.num_slots)
        (marks or PrefixMarks(limits.num_slots)).check(items, slots)
    return step


def item_of(
    parents: Sequence[int],
    slots: IntArray,
    prefix_slots: Sequence[int] | IntArray = (),
    *,
    tokens: Sequence[int] | IntArray | None = None,
    outputs: Sequence[int] | IntArray = (),
    session: int = 0,
    sampling: SamplingParams | None = None,
    prompt_length: int = 0,
) -> StepItem:
    """Make a step item of rows after a prefix, for checks; a parent of -1 means the prefix's end.

    Tokens default to 0.
    """
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return StepItem(
        session=session,
        prefix_slots=np.asarray(prefix_slots, np.int32),
        tokens=np.zeros(len(depths), np.int32) if tokens is None else np.asarray(tokens, np.int32),
        positions=np.array(depths, np.int32) + np.int32(len(prefix_slots)),
        parents=np.asarray(parents, np.int32),
        slots=slots,
        outputs=np.asarray(outputs, np.int32),
        sampling=sampling or SamplingParams(),
        prompt_length=prompt_length,
    )


def path_rows(parents: IntArray | Sequence[int], row: int) -> list[int]:
    """Return the rows from the first below the prefix down to `row`, itself included. parents [T] local."""
    path: list[int] = []
    while row >= 0:
        path.append(row)
        row = int(parents[row])
    return path[::-1]


def _join(arrays: Sequence[IntArray]) -> IndexArray:
    if not arrays:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate(arrays).astype(np.int64)


def _num_rows(item: StepItem) -> int:
    num_rows = len(item.tokens)
    if not num_rows == len(item.positions) == len(item.parents) == len(item.slots):
        raise _broken(
            f"session {item.session} has {num_rows} tokens, {len(item.positions)} positions, "
            f"{len(item.parents)} parents and {len(item.slots)} slots; the four must be equal"
        )
    return num_rows


def _check_outputs(step: PackedStep, starts: IndexArray, ends: IndexArray) -> None:
    """Outputs are rows of their items, increasing. starts, ends [O]: the item's packed rows."""
    outputs = step.outputs
    wrong = (outputs < starts) | (outputs >= ends)
    wrong[1:] |= outputs[1:] <= outputs[:-1]  # rows of different items increase if they are rows of them
    if np.count_nonzero(wrong):
        counts = [len(item.outputs) for item in step.items]
        item = step.items[int(np.arange(len(counts)).repeat(counts)[wrong.argmax()])]
        raise _broken(
            f"session {item.session} has outputs {item.outputs.tolist()} of {len(item.tokens)} rows; "
            "they must be rows of it, increasing"
        )


def _check_rows(step: PackedStep, parents: IndexArray, prefixes: IndexArray, limits: StepLimits) -> None:
    """Parents precede their rows, positions follow the parent or the prefix, tokens are in range.

    Of a small array `argmax` is several times faster than `max`, and `count_nonzero` than `any`.
    """
    if parents[parents.argmin()] < -1 or np.count_nonzero(step.parents >= np.arange(step.num_rows)):
        raise _broken("a row's parent must be -1 or a row before it of the same item")
    expected = np.where(parents < 0, prefixes, step.positions[step.parents] + 1)
    if np.count_nonzero(step.positions != expected):
        raise _broken("a row's position must be one after its parent's, or the prefix's length")
    if _greatest(step.positions) >= limits.max_positions:
        raise _broken(f"a row lies beyond the model's last position, {limits.max_positions - 1}")
    if _greatest(step.tokens.view(np.uint64)) >= limits.vocab_size:  # negative ones are then too large
        raise _broken(f"a token id lies outside the vocabulary of {limits.vocab_size}")


def _check_written(slots: IndexArray, num_slots: int) -> None:
    """Every row has a slot of its own."""
    _check_within(slots.view(np.uint64), num_slots)
    ordered = np.sort(slots)
    if np.count_nonzero(ordered[1:] == ordered[:-1]):
        raise _broken("two rows are to be written to one slot")


def _check_within(slots: NDArray[np.unsignedinteger[Any]], num_slots: int) -> None:
    """Raise `LocalError` for a slot outside the store; negative ones, seen as unsigned, are too large."""
    if _greatest(slots) >= num_slots:
        raise _broken(f"a slot lies outside the KV store of {num_slots}")


def _greatest(numbers: NDArray[np.integer[Any]]) -> int:
    return int(numbers[numbers.argmax()])


def _broken(reason: str) -> LocalError:
    return LocalError(f"step plan refused: {reason}")
