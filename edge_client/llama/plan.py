"""Nouns of a draft step: the nodes of a live tree, and the rows of one llama_decode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edge_client.core.drafter import Expansion
from edge_client.llama.batch import Batch

NO_SEQUENCE = -1
NOT_PLANNED = -1


class Surprise(Exception):
    """The KV is not what we think it is, or has no room. Answered by a resync; never leaves the drafter."""

    def __init__(self, message: str, full: bool = False) -> None:
        super().__init__(message)
        self.full = full  # for want of room


@dataclass(slots=True, eq=False)
class DraftNode:
    """A node the draft was asked about, or the tip."""

    id: int
    parent: DraftNode | None = field(repr=False)  # None: the tip
    token: int
    position: int
    sequence: int = NO_SEQUENCE  # one that holds its KV; NO_SEQUENCE = not evaluated, or lost
    row: int = NOT_PLANNED  # in the batch that is being put together
    expansion: Expansion | None = None

    def path(self) -> Iterator[DraftNode]:
        """The node, then its ancestors up to and with the tip."""
        node: DraftNode | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(slots=True)
class BatchPlan:
    """The rows of the next llama_decode. Those of a session stand together, from its `first` on."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # 1: give logits, 0: only its KV is needed
    nodes: list[DraftNode | None] = field(default_factory=list)  # None: a committed token before the tip
    shared: dict[int, list[int]] = field(default_factory=dict)  # row -> sequences beyond its first
    first: int = 0  # row with which the session that is planning now began

    def num_read(self, start: int, stop: int) -> int:
        """Committed tokens before a tip among the rows [start, stop)."""
        return sum(node is None for node in self.nodes[start:stop])

    def begin(self) -> int:
        """The rows that follow are another session's; where they begin."""
        self.first = len(self.tokens)
        return self.first

    def add(self, node: DraftNode) -> None:
        node.row = len(self.tokens)
        self.add_token(node.token, node.position, node.sequence, node)

    def add_token(self, token: int, position: int, sequence: int, node: DraftNode | None = None) -> None:
        self.tokens.append(token)
        self.positions.append(position)
        self.sequences.append(sequence)
        self.outputs.append(0)
        self.nodes.append(node)

    def cut(self, start: int) -> list[DraftNode | None]:
        """Take the rows from `start` on out again; the nodes that they stood for."""
        removed = self.nodes[start:]
        for column in (self.tokens, self.positions, self.sequences, self.outputs, self.nodes):
            del column[start:]
        self.shared = {row: more for row, more in self.shared.items() if row < start}
        return removed

    def fill(self, batch: Batch) -> None:
        """Write the rows where llama.cpp reads them."""
        batch.fill(self.tokens, self.positions, self.sequences, self.outputs)
        for row, more in self.shared.items():
            batch.share(row, [self.sequences[row], *more])
