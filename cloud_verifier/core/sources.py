"""Define the verifier's own sources of proposals, which `VerifySession` goes through in order."""

from __future__ import annotations

from collections.abc import Sequence

from common.prompt_lookup import PromptLookup, grow_guesses
from common.tree import Node, SpeculationTree


class ProposalSource:
    """Proposes nodes below a session's tip. A verb does nothing unless a source has a use for it.

    The verbs are those of the edge's sources (`edge_client.core.proposal_source`), as far as a verifier
    needs them.
    """

    copies = False  # from texts

    def grow(self, tree: SpeculationTree, last: int, room: int) -> None:
        """Grow at most `room` nodes below the tip and below the end of the likeliest path. `last` is the
        position of the text's end, where a node would save no step."""

    def proposed(self, node: Node) -> bool:
        """Return whether the source proposed this node of the edge, too."""
        return False

    def learn(self, tree: SpeculationTree, token: int) -> None:
        """Learn that the target writes `token` after the tip, before the tip moves."""

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Take leave of a step's nodes, the tip first: they are text now, or dead."""

    def close(self) -> None:
        """Let other sessions use this text, which has ended."""


class EarlierText(ProposalSource):
    """Copies from the session's own text and from texts that sessions share."""

    copies = True

    def __init__(self, lookup: PromptLookup, committed: Sequence[int] = ()) -> None:
        self._lookup = lookup
        for token in committed:
            lookup.append(token)

    def grow(self, tree: SpeculationTree, last: int, room: int) -> None:
        grow_guesses(tree, self._lookup, last, room)

    def learn(self, tree: SpeculationTree, token: int) -> None:
        self._lookup.append(token)

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Remember the target's choices on branches that died."""
        self._lookup.recycle(nodes, tree.committed)

    def close(self) -> None:
        self._lookup.close()
