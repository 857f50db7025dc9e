"""llama.cpp's unified KV without a model: it checks what llama.cpp checks, and its logits tell what a row
sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cloud_verifier.core.engine_protocol import FloatArray, StepPlan, StepResult
from cloud_verifier.engine.packing import StepLimits, pack
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.shapes import DecodeShapes
from common.llama.runtime import NO_KV_SLOT, TO_THE_END, ByteArray
from tests.worlds.models import TinyTarget


@dataclass
class Cell:
    position: int
    token: int
    sequences: set[int]
    index: int = -1  # where it lies


@dataclass
class Cells:
    """A `Runtime`. The logits of a row are the tokens that it sees, by position, and -1 beyond its own. A row
    gets the lowest free cell, as in llama.cpp's `find_slot`, and must see the cells of its text in their
    order."""

    n_ctx: int
    num_positions: int
    n_seq_max: int = 256
    n_together: int = 512
    max_rows: int = 256
    window: int = 0
    cells: list[Cell] = field(default_factory=list)  # occupied, by `index`
    failing: int = 0  # so many decodes fail from now on, each after half of its rows

    def __post_init__(self) -> None:
        self.num_decodes = 0
        self.decoded: list[list[int]] = []  # positions of the rows of each decode
        self.num_outputs: list[int] = []  # of each decode
        self._rows: list[tuple[int, int, list[int], int]] = []
        self._found: list[list[int]] = []

    @property
    def batch(self) -> Cells:
        return self

    def fill(self, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> None:
        assert 0 < len(tokens) <= self.n_together
        assert sum(outputs) <= self.max_rows
        own = [[sequence] for sequence in sequences]
        self._rows = list(zip(tokens, positions, own, outputs, strict=True))

    def share(self, row: int, sequences: Iterable[int]) -> None:
        token, position, _, output = self._rows[row]
        self._rows[row] = token, position, list(sequences), output

    def decode(self) -> int:
        self.num_decodes += 1
        if len(self.cells) + len(self._rows) > self.n_ctx:
            return NO_KV_SLOT
        self._check()
        self._found = []
        self.decoded.append([position for _, position, _, _ in self._rows])
        self.num_outputs.append(sum(output for *_, output in self._rows))
        half = len(self._rows) // 2
        for row, (token, position, sequences, output) in enumerate(self._rows):
            if self.failing and row == half:
                self.failing -= 1
                return -3
            self._put(Cell(position, token, set(sequences)))
            if output:
                self._found.append(self._seen(sequences[0], position))
        return 0

    def _put(self, cell: Cell) -> None:
        taken = {each.index for each in self.cells}
        cell.index = next(index for index in range(self.n_ctx) if index not in taken)
        self.cells.append(cell)
        self.cells.sort(key=lambda each: each.index)

    def _check(self) -> None:
        """As `llama_batch_allocr::init` does: in each sequence positions go on without a gap, and sequences
        that share a row have the same positions before it."""
        ends = {s: self._end(s) for _, _, sequences, _ in self._rows for s in sequences}
        for _, position, sequences, _ in self._rows:
            assert len({ends[sequence] for sequence in sequences}) == 1, "coupled sequences diverge"
            for sequence in sequences:
                assert 0 <= sequence < self.n_seq_max
                assert ends[sequence] == position, "positions of a sequence are not consecutive"
                ends[sequence] = position + 1

    def _end(self, sequence: int) -> int:
        return max((c.position + 1 for c in self.cells if sequence in c.sequences), default=0)

    def _seen(self, sequence: int, position: int) -> list[int]:
        seen = [c for c in self.cells if sequence in c.sequences and c.position <= position]
        found = [cell.position for cell in seen]
        assert sorted(found) == list(range(position + 1)), "a row sees a position twice or not at all"
        assert found == list(range(position + 1)), "cells are not in the order of positions"
        return [cell.token for cell in seen]

    def logits(self, num_rows: int) -> FloatArray:
        found = np.full((num_rows, self.num_positions), -1, np.float32)
        for row, seen in zip(found, self._found, strict=False):
            row[: len(seen)] = seen
        return found

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None:
        for cell in self.cells:
            if source in cell.sequences and start <= cell.position < stop:
                cell.sequences.add(destination)

    def seq_remove(self, sequence: int, start: int, stop: int = TO_THE_END) -> bool:
        for cell in self.cells:
            if start <= cell.position and (cell.position < stop or stop == TO_THE_END):
                cell.sequences.discard(sequence)
        self.cells = [cell for cell in self.cells if cell.sequences]
        return True

    def seq_state(self, sequence: int) -> ByteArray:
        held = [(c.position, c.token) for c in self.cells if sequence in c.sequences]
        if self.window:  # as `state_write` does
            last = max((position for position, _ in held), default=0)
            held = [each for each in held if last - each[0] < self.window]
        return np.array(held, np.int32).view(np.uint8)

    def seq_restore(self, sequence: int, state: ByteArray) -> bool:
        self.seq_remove(sequence, 0)
        for position, token in state.view(np.int32).tolist():
            if len(self.cells) == self.n_ctx:
                return False
            self._put(Cell(position, token, {sequence}))
        return True

    def clear(self) -> None:
        self.cells.clear()


SHAPES = DecodeShapes(((1, 1.0), (2, 1.5), (4, 2.0)), text_rows=3)


@dataclass
class CellTarget(TinyTarget):
    """The tiny target, whose steps run through llama.cpp's cells, too. Every output row must see in its cells
    what stands in its slots."""

    num_sequences: int = 256
    num_spare: int = 32  # cells beyond the slots
    num_again = num_moved = 0  # in all targets of a test

    def __post_init__(self) -> None:
        super().__post_init__()
        positions = min(self.info.max_positions, self.info.num_slots)
        room = self.info.num_slots + self.num_spare
        self.cells = Cells(room, positions, self.num_sequences, n_together=24, max_rows=20)
        self.forward = LlamaForward(self.cells, self.info.num_slots, positions, SHAPES)
        self.limits = StepLimits(self.info.vocab_size, positions, self.info.num_slots)

    def evaluate(self, plan: StepPlan) -> StepResult:
        result = super().evaluate(plan)
        before = self.forward.num_again
        found = iter(self.forward.run(pack(plan, self.limits)))
        CellTarget.num_again += self.forward.num_again - before
        CellTarget.num_moved += self.forward.sequences.num_moved
        self.forward.sequences.num_moved = 0
        for item in plan.items:
            prefix, paths = [self.kv[slot][1] for slot in item.prefix_slots.tolist()], list[list[int]]()
            for token, parent in zip(item.tokens.tolist(), item.parents.tolist(), strict=True):
                paths.append([*(prefix if parent < 0 else paths[parent]), token])
            for row in item.outputs.tolist():
                seen = next(found)
                assert seen[seen >= 0].tolist() == paths[row]
        assert next(found, None) is None
        return result
