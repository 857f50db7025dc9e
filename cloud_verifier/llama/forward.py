"""Evaluates a packed step by llama.cpp, in one or several llama_decodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cloud_verifier.core.engine_protocol import FloatArray, IntArray, StepItem
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.llama.sequences import Leaf, NoSequenceError, SlotMemory, SlotSequences
from cloud_verifier.llama.shapes import MOST_FILLED, DecodeShapes, prompt_cuts
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

    n_ctx: int  # cells
    n_together: int  # most rows of a decode that llama.cpp computes in one pass
    max_rows: int  # most outputs of a decode
    n_seq_max: int

    @property
    def batch(self) -> RowBatch: ...
    def decode(self) -> int: ...
    def logits(self, num_rows: int) -> FloatArray: ...


@dataclass(slots=True)
class Rows:
    """Collects rows, each after those that it sees."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)  # of each row
    slots: list[int] = field(default_factory=list)
    outputs: list[int] = field(
        default_factory=list
    )  # place of a row's logits in the step; -1: none are wanted

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, rows: Rows, start: int = 0, stop: int | None = None) -> None:
        part = slice(start, stop)
        self.tokens += rows.tokens[part]
        self.positions += rows.positions[part]
        self.sequences += rows.sequences[part]
        self.slots += rows.slots[part]
        self.outputs += rows.outputs[part]


class LlamaForward:
    """Writes the KV of a step's rows and returns the logits of its outputs.

    A step is one llama_decode, or several as `shapes` says, and where its leaves exceed the sequences. Args:
    runtime; num_slots, fewer than its cells; num_positions, the longest text; shapes.
    """

    def __init__(
        self, runtime: Runtime, num_slots: int, num_positions: int, shapes: DecodeShapes | None = None
    ) -> None:
        self._runtime = runtime
        self.shapes = shapes or DecodeShapes()
        self.sequences = SlotSequences(runtime, runtime.n_seq_max, num_slots, num_positions, runtime.n_ctx)
        self._tokens: IntArray = np.zeros(num_slots, np.int32)  # by slot, to evaluate lost ones again
        self._parts: list[tuple[list[int], FloatArray]] = []  # of the running step: output places, logits
        self.num_again = 0  # rows that were evaluated again because their KV was lost

    def run(self, step: PackedStep) -> FloatArray:
        """Return logits float32 [O, V], a view until the next call. Raises `CapacityError` if llama.cpp has
        no memory for the step, and `LocalError` for another failure."""
        self.sequences.renew(step.slots, step.positions)
        self._tokens[step.slots] = step.tokens
        self._parts = []
        left, num_outputs = [item for item in step.items if len(item.tokens)], 0
        while left:
            laid = self._lay_all(left)
            num_outputs = self._evaluate(left[: len(laid)], laid, num_outputs)
            left = left[len(laid) :]
        return self._joined(num_outputs)

    def _joined(self, num_outputs: int) -> FloatArray:
        if not self._parts:
            return self._runtime.logits(0)
        places, logits = self._parts[-1]
        if len(places) == num_outputs and places == list(range(num_outputs)):
            return logits
        joined: FloatArray = np.empty((num_outputs, logits.shape[1]), np.float32)
        for places, logits in self._parts:
            joined[places] = logits
        return joined

    def _lay_all(self, items: Sequence[StepItem]) -> list[list[Leaf]]:
        """Give the rows of the first items their sequences, of as many items as there are sequences for."""
        self.sequences.begin_batch()
        laid = list[list[Leaf]]()
        for item in items:
            try:
                laid.append(self._lay(item))
            except NoSequenceError:
                break
        if not laid:
            raise LocalError(
                f"a session's tree has more leaves than llama.cpp has sequences, {self._runtime.n_seq_max}"
            )
        return laid

    def _lay(self, item: StepItem) -> list[Leaf]:
        """Give the item's rows their sequences, and evaluate the slots of its prefix that are lost."""
        held, end = self.sequences.hold(item.session, item.prefix_slots), len(item.prefix_slots)
        if held < end:
            self._evaluate_again(item, held)
        return self.sequences.lay(item)

    def _evaluate_again(self, item: StepItem, start: int) -> None:
        end, trunk = len(item.prefix_slots), self.sequences.trunk(item.session)
        self.num_again += end - start
        logger.debug("session %d: %d tokens are evaluated again", item.session, end - start)
        slots = item.prefix_slots[start:]
        self.sequences.renew(slots, np.arange(start, end))
        prompts, texts, count = Rows(), Rows(), end - start
        rows = Rows(
            self._tokens[slots].tolist(),
            list(range(start, end)),
            [[trunk]] * count,
            slots.tolist(),
            [-1] * count,
        )
        self._divide(rows, item.prompt_length - start, prompts, texts)
        self._decode_all(prompts, texts)
        self.sequences.wrote(slots, start, [Leaf(trunk, list(range(end - start)))])

    def _divide(self, rows: Rows, num_prompt: int, prompts: Rows, texts: Rows) -> None:
        """Add the first `num_prompt` rows to `prompts` and the others to `texts`; all if they may mix."""
        cut = min(max(num_prompt, 0), len(rows)) if self.shapes.repeats else 0
        if cut:
            prompts.add(rows, 0, cut)
        if cut < len(rows):
            texts.add(rows, cut)

    def _evaluate(self, items: Sequence[StepItem], laid: Sequence[list[Leaf]], num_before: int) -> int:
        """Evaluate items. Return the number of outputs up to them; `num_before` come before them."""
        prompts, texts = Rows(), Rows()
        for item, leaves in zip(items, laid, strict=True):
            count = len(item.tokens)
            sequences: list[list[int]] = [[] for _ in range(count)]
            for leaf in leaves:
                for row in leaf.rows:
                    sequences[row].append(leaf.sequence)
            outputs = [-1] * count
            for row in item.outputs.tolist():
                outputs[row], num_before = num_before, num_before + 1
            rows = Rows(
                item.tokens.tolist(), item.positions.tolist(), sequences, item.slots.tolist(), outputs
            )
            self._divide(rows, item.prompt_length - len(item.prefix_slots), prompts, texts)
        self._decode_all(prompts, texts)
        for item, leaves in zip(items, laid, strict=True):
            self.sequences.wrote(item.slots, len(item.prefix_slots), leaves)
        return num_before

    def _decode_all(self, prompts: Rows, texts: Rows) -> None:
        self.sequences.make_room(len(prompts) + len(texts) + MOST_FILLED)
        most = min(self._runtime.n_together, self._runtime.max_rows)
        cuts = prompt_cuts(len(prompts), most) if len(prompts) else []
        for rows, sizes in ((prompts, cuts), (texts, self.shapes.cut(len(texts), most))):
            start = 0
            for size in sizes:
                self._decode(rows, start, size, is_prompt=rows is prompts)
                start += size

    def _decode(self, rows: Rows, start: int, size: int, *, is_prompt: bool) -> None:
        """Evaluate `size` rows from `start` on; rows that are missing there are filled up and forgotten, as
        are logits beyond the wanted ones.

        After a failure all KV is lost, and later steps evaluate it again.
        """
        stop = min(start + size, len(rows))
        filling = range(start + size - stop)
        carrier = self.sequences.carrier
        sequences = rows.sequences[start:stop]
        places = rows.outputs[start:stop] + [-1] * len(filling)
        outputs = [int(place >= 0) for place in places]
        unread = self.shapes.num_outputs(sum(outputs)) - sum(outputs) if is_prompt else 0
        for row in [row for row, place in enumerate(places) if place < 0][:unread]:
            outputs[row] = 1
        self._runtime.batch.fill(
            rows.tokens[start:stop] + [0] * len(filling),
            rows.positions[start:stop] + list(filling),
            [own[0] for own in sequences] + [carrier] * len(filling),
            outputs,
        )
        for row, own in enumerate(sequences):
            if len(own) > 1:
                self._runtime.batch.share(row, own)
        if self._parts:  # the logits of the decode before are overwritten
            before, logits = self._parts.pop()
            self._parts.append((before, logits.copy() if logits.base is not None else logits))
        code = self._runtime.decode()
        if code:
            self.sequences.clear()
            reason = native_log().reason()
            if code == NO_KV_SLOT:
                raise CapacityError(f"llama.cpp has no cells for a decode of {size} rows{reason}; try later")
            raise LocalError(
                f"llama.cpp cannot evaluate {size} rows (code {code}){reason}; if memory is short, lower "
                "--slots, --max-rows or --gpu-layers"
            )
        self.sequences.placed(np.array(rows.slots[start:stop], np.int32))
        if filling:
            self._runtime.seq_remove(carrier, 0, len(filling))
        if any(outputs):
            logits = self._runtime.logits(sum(outputs))
            read = [place for place, output in zip(places, outputs, strict=True) if output]
            if unread:
                logits = logits[np.array(read) >= 0]
            self._parts.append(([place for place in read if place >= 0], logits))
