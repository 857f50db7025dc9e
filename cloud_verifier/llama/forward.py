"""Evaluates a packed step by llama.cpp."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cloud_verifier.core.nouns import FloatArray, IntArray, StepItem
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.llama.sequences import Leaf, NoSequenceError, SlotMemory, SlotSequences
from common.errors import CapacityError, LocalError
from common.llama.library import native_log
from common.llama.runtime import NO_KV_SLOT

logger = logging.getLogger(__name__)


class RowBatch(Protocol):
    """Takes the rows of one llama_decode (`common.llama.batch`)."""

    def fill(
        self, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]
    ) -> None: ...
    def share(self, row: int, sequences: list[int]) -> None: ...


class Runtime(SlotMemory, Protocol):
    """Evaluates batches in one context (`common.llama.runtime`)."""

    n_batch: int  # most rows of a batch
    max_rows: int  # most outputs of a batch
    n_seq_max: int

    @property
    def batch(self) -> RowBatch: ...
    def decode(self) -> int: ...
    def logits(self, num_rows: int) -> FloatArray: ...


@dataclass(slots=True)
class DecodeBatch:
    """Collects the rows of one llama_decode."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)  # of each row
    outputs: list[int] = field(default_factory=list)  # 1: give logits
    items: list[tuple[StepItem, list[Leaf]]] = field(default_factory=list)

    @property
    def num_outputs(self) -> int:
        return sum(len(item.outputs) for item, _ in self.items)

    def add(self, item: StepItem, leaves: list[Leaf]) -> None:
        sequences: list[list[int]] = [[] for _ in item.tokens]
        for leaf in leaves:
            for row in leaf.rows:
                sequences[row].append(leaf.sequence)
        outputs = [0] * len(item.tokens)
        for row in item.outputs.tolist():
            outputs[row] = 1
        self.tokens += item.tokens.tolist()
        self.positions += item.positions.tolist()
        self.sequences += sequences
        self.outputs += outputs
        self.items.append((item, leaves))


class LlamaForward:
    """Writes the KV of a step's rows and returns the logits of its outputs.

    A step is one llama_decode, or several if its rows exceed a batch or its leaves the sequences. Args:
    runtime; num_slots, at most its cells; num_positions, the longest text.
    """

    def __init__(self, runtime: Runtime, num_slots: int, num_positions: int) -> None:
        self._runtime = runtime
        self._sequences = SlotSequences(runtime, runtime.n_seq_max, num_slots, num_positions)
        self._tokens: IntArray = np.zeros(num_slots, np.int32)  # by slot, to evaluate lost ones again
        self.num_again = 0  # rows that were evaluated again because their KV was lost

    def clear(self) -> None:
        """Forget all KV. Prefixes that later steps name are evaluated again."""
        self._sequences.clear()

    def run(self, step: PackedStep) -> FloatArray:
        """Return logits float32 [O, V], a view until the next call. Raises `CapacityError` if llama.cpp has
        no memory for the step, and `LocalError` for another failure."""
        self._sequences.renew(step.slots, step.positions)
        self._tokens[step.slots] = step.tokens
        parts = list(self._batches(step))
        return parts[0] if len(parts) == 1 else np.concatenate([self._runtime.logits(0), *parts])

    def _batches(self, step: PackedStep) -> Iterator[FloatArray]:
        """Evaluate the step's batches and yield their logits, copied if another batch follows."""
        batch = self._begin()
        items = [item for item in step.items if len(item.tokens)]
        for item in items:
            if not self._fits(batch, item):
                yield self._evaluate(batch).copy()
                batch = self._begin()
            try:
                leaves = self._lay(item)
            except NoSequenceError:
                yield self._evaluate(batch).copy()
                batch = self._begin()
                leaves = self._lay_alone(item)
            batch.add(item, leaves)
        yield self._evaluate(batch)

    def _begin(self) -> DecodeBatch:
        self._sequences.begin_batch()
        return DecodeBatch()

    def _fits(self, batch: DecodeBatch, item: StepItem) -> bool:
        num_rows, num_outputs = len(batch.tokens), batch.num_outputs
        if not num_rows:
            return True
        within = num_rows + len(item.tokens) <= self._runtime.n_batch
        return within and num_outputs + len(item.outputs) <= self._runtime.max_rows

    def _lay_alone(self, item: StepItem) -> list[Leaf]:
        try:
            return self._lay(item)
        except NoSequenceError:
            raise LocalError(
                f"a session's tree has more leaves than llama.cpp has sequences, {self._runtime.n_seq_max}"
            ) from None

    def _lay(self, item: StepItem) -> list[Leaf]:
        """Give the item's rows their sequences, and evaluate the slots of its prefix that are lost."""
        held, end = self._sequences.hold(item.session, item.prefix_slots), len(item.prefix_slots)
        if held < end:
            self._evaluate_again(item, held)
        return self._sequences.lay(item)

    def _evaluate_again(self, item: StepItem, start: int) -> None:
        end, trunk = len(item.prefix_slots), self._sequences.trunk(item.session)
        self.num_again += end - start
        logger.debug("session %d: %d tokens are evaluated again", item.session, end - start)
        self._sequences.renew(item.prefix_slots[start:], np.arange(start, end))
        for first in range(start, end, self._runtime.n_batch):
            slots = item.prefix_slots[first : first + self._runtime.n_batch]
            count = len(slots)
            positions = list(range(first, first + count))
            self._runtime.batch.fill(self._tokens[slots].tolist(), positions, [trunk] * count, [0] * count)
            self._decode(count, 1)
            self._sequences.wrote(slots, first, [Leaf(trunk, list(range(count)))])

    def _evaluate(self, batch: DecodeBatch) -> FloatArray:
        """Evaluate a batch. Return the logits [O, V] of its outputs, a view."""
        if not batch.tokens:
            return self._runtime.logits(0)
        firsts = [each[0] for each in batch.sequences]
        self._runtime.batch.fill(batch.tokens, batch.positions, firsts, batch.outputs)
        for row, sequences in enumerate(batch.sequences):
            if len(sequences) > 1:
                self._runtime.batch.share(row, sequences)
        self._decode(len(batch.tokens), len(batch.items))
        for item, leaves in batch.items:
            self._sequences.wrote(item.slots, len(item.prefix_slots), leaves)
        return self._runtime.logits(batch.num_outputs)

    def _decode(self, num_rows: int, num_sessions: int) -> None:
        """Evaluate the runtime's batch. After a failure all KV is lost, and later steps evaluate it again."""
        code = self._runtime.decode()
        if not code:
            return
        self._sequences.clear()
        reason = native_log().reason()
        if code == NO_KV_SLOT:
            raise CapacityError(f"llama.cpp has no cells for a step of {num_rows} rows{reason}; try later")
        raise LocalError(
            f"llama.cpp cannot evaluate {num_rows} rows of {num_sessions} sessions (code {code}){reason}; if "
            "memory is short, lower --slots, --max-rows or --gpu-layers"
        )
