"""Define the verifier's own sources of proposals, which `VerifySession` goes through in order."""

from __future__ import annotations

from collections.abc import Sequence

from common.prompt_lookup import PromptLookup
from common.token_source import CopiedText, TokenSource
from common.tree import Node, SpeculationTree


class VerifierSource(TokenSource):
    """Proposes nodes without an edge."""

    def proposed(self, node: Node) -> bool:
        """Return whether the source proposed this node of the edge, too."""
        return False

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Take leave of a step's nodes, the tip first: they are text now, or dead. A chunk of a prompt has
        none."""


class RecalledText(CopiedText, VerifierSource):
    """Copies from earlier texts. It also remembers what the target chose on branches that died."""

    def __init__(self, lookup: PromptLookup, committed: Sequence[int] = ()) -> None:
        super().__init__(lookup)
        for token in committed:
            lookup.append(token)

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Remember the target's choices on branches that died."""
        self._lookup.recycle(nodes, tree.committed)
