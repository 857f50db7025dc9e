"""Plans the rows of one llama_decode: nodes of drafting sessions and pieces of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edge_client.core.effects import Expansion

NO_SEQUENCE = -1
NOT_PLANNED = -1


class EngineSurprise(Exception):
    """Raised when the KV is full or not in the expected state. The drafter answers it by a resync."""

    def __init__(self, message: str, full: bool = False) -> None:
        super().__init__(message)
        self.full = full  # for lack of room


@dataclass(slots=True, eq=False)
class DraftNode:
    """Represents the tip, or a node that a draft step has asked about or has foreseen."""

    id: int  # below 0: foreseen, and no draft step has asked about it yet
    parent: DraftNode | None = field(repr=False)  # None: the tip
    token: int
    position: int
    sequence: int = NO_SEQUENCE  # a sequence with its KV; NO_SEQUENCE = not evaluated, or lost
    row: int = NOT_PLANNED  # in the batch under construction
    expansion: Expansion | None = None

    def below_tip(self) -> list[int]:
        """Return the tokens from below the tip down to the node, inclusive."""
        return [above.token for above in self.path()][-2::-1]

    def path(self) -> Iterator[DraftNode]:
        """Yield the node, then its ancestors up to the tip, inclusive."""
        node: DraftNode | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(slots=True)
class BatchPlan:
    """Collects the rows of the next llama_decode. Each session's rows are contiguous from `first` on."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # 1: give logits, 0: only its KV is needed
    nodes: list[DraftNode | None] = field(default_factory=list)  # None: a committed token before the tip
    shared: dict[int, list[int]] = field(default_factory=dict)  # row -> sequences beyond its first
    first: int = 0  # first row of the session that is planning now

    def begin(self) -> int:
        """Begin another session's rows. Return the first of them."""
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
        """Remove the rows from `start` on. Return their nodes."""
        removed = self.nodes[start:]
        for column in (self.tokens, self.positions, self.sequences, self.outputs, self.nodes):
            del column[start:]
        self.shared = {row: more for row, more in self.shared.items() if row < start}
        return removed
