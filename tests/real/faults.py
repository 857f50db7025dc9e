"""Faults of the packed path of GGUF targets, put in on purpose: rows see a cell too many, or stand elsewhere.

Each is a function that harms one engine's `LlamaForward`. llama.cpp alone, to which the check at load
compares, stays unharmed. All are of a kind that llama.cpp accepts: it refuses gaps between positions
by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cloud_verifier.core.engine_protocol import IntArray, StepItem
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.sequences import Leaf

FIRST_SHIFTED = 4
"""Position from which on every token stands one too low."""


def visible_neighbour(engine: LlamaEngine) -> None:
    """Each leaf also sees one cell of another session's text."""
    sequences = engine.forward.sequences
    lay = sequences.lay

    def leaking(item: StepItem) -> list[Leaf]:
        leaves, held = lay(item), sequences._held
        own, end = held[sequences.trunk(item.session)], len(item.prefix_slots)
        for session, seat in sequences._seats.items():
            other = held[seat.trunk, :end]
            (places,) = ((other != own[:end]) & (other > 0)).nonzero()
            if session != item.session and len(places):
                place = int(places[-1])
                for leaf in leaves:
                    sequences._memory.seq_copy(seat.trunk, leaf.sequence, place, place + 1)
                break
        return leaves

    sequences.lay = leaking  # type: ignore[method-assign]


def shifted_position(engine: LlamaEngine) -> None:
    """Tokens from the fifth on stand one position too low, so that two tokens share one."""
    forward = engine.forward
    forward._runtime = forward.sequences._memory = _Shifted(engine.runtime)


class _Shifted:
    """A `Runtime` whose positions are too low from `FIRST_SHIFTED` on."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    @property
    def batch(self) -> _Shifted:
        return self

    def fill(self, tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> None:
        self._runtime.batch.fill(tokens, [*map(_shifted, positions)], sequences, outputs)

    def share(self, row: int, sequences: list[int]) -> None:
        self._runtime.batch.share(row, sequences)

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None:
        self._runtime.seq_copy(source, destination, _shifted(start), _shifted(stop))

    def seq_remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        return bool(self._runtime.seq_remove(sequence, _shifted(start), _shifted(stop)))


def _shifted(position: int) -> int:
    return position - (position >= FIRST_SHIFTED)


def wrong_branch(engine: LlamaEngine) -> None:
    """A leaf sees the cell of a sibling of one of its nodes."""
    sequences = engine.forward.sequences
    wrote = sequences.wrote

    def mixing(slots: IntArray, start: int, leaves: Sequence[Leaf]) -> None:
        wrote(slots, start, leaves)
        for leaf, other in zip(leaves[1:], leaves, strict=False):
            depth = next(at for at, (a, b) in enumerate(zip(leaf.rows, other.rows, strict=False)) if a != b)
            place = start + depth
            sequences._memory.seq_copy(other.sequence, leaf.sequence, place, place + 1)

    sequences.wrote = mixing  # type: ignore[method-assign]


def stale_cell(engine: LlamaEngine) -> None:
    """A rejected draft's cell stays in the sequence where another token was committed in its place."""
    sequences = engine.forward.sequences
    assign, memory, kept = sequences._assign, sequences._memory, [0]

    def assigning(sequence: int, prefix: IntArray) -> int:
        kept[0] = len(prefix)
        try:
            return assign(sequence, prefix)
        finally:
            kept[0] = 0

    def burying(sequence: int, start: int, stop: int) -> None:
        memory.seq_copy(sequence, sequences._grave, start, stop)
        if stop > max(start, kept[0]):
            memory.seq_remove(sequence, max(start, kept[0]), stop)

    sequences._assign = assigning  # type: ignore[method-assign]
    sequences._bury = burying  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[LlamaEngine], None]] = {
    "visible_neighbour": visible_neighbour,
    "shifted_position": shifted_position,
    "wrong_branch": wrong_branch,
    "stale_cell": stale_cell,
}
