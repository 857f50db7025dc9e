"""Define the verifier's own sources of proposals, which `VerifySession` goes through in order."""

from __future__ import annotations

from collections.abc import Sequence

from common.prompt_lookup import LEAST, PromptLookup, grow_guesses
from common.token_source import TokenSource
from common.tree import Node, SpeculationTree


class VerifierSource(TokenSource):
    """Proposes nodes without an edge."""

    def proposed(self, node: Node) -> bool:
        """Return whether the source proposed this node of the edge, too."""
        return False

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Take leave of a step's nodes, the tip first: they are text now, or dead."""


class RecalledText(VerifierSource):
    """Copies from the session's own text and from texts that sessions share."""

    copies = True

    def __init__(self, lookup: PromptLookup, committed: Sequence[int] = ()) -> None:
        self._lookup = lookup
        for token in committed:
            lookup.append(token)

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        grow_guesses(tree, self._lookup, last, room, surely, from_tip=from_tip)

    def learn(self, node: int, token: int) -> None:
        self._lookup.append(token)

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Remember the target's choices on branches that died."""
        self._lookup.recycle(nodes, tree.committed)

    def close(self) -> None:
        self._lookup.close()
