"""Defines the sources of proposals beside the draft model, which `Growth` goes through in order."""

from __future__ import annotations

from collections.abc import Sequence

from common.prompt_lookup import LEAST, PromptLookup, SharedTexts, grow_guesses
from common.token_source import TokenSource
from common.tree import Node, SpeculationTree
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate

MOST_GUESSED = 32
"""New nodes from earlier texts after a Commit: what a verifier evaluates in the two steps of a usual round
trip."""


class ProposalSource(TokenSource):
    """Proposes tokens that no draft model computed."""

    listens = False  # to what other machines expect

    def weigh(self, node: int, candidates: Sequence[TokenCandidate]) -> Sequence[TokenCandidate]:
        """Return the draft model's candidates after a node, the likeliest first, with their chances."""
        return candidates

    def hear(self, view: GrowthView, policy: GrowthPolicy, node: Node, tokens: Sequence[int]) -> None:
        """Note what another machine expects after a live node, the likeliest first, and grow it."""

    def forget(self, node: int) -> None:
        """Drop what is known of a node that died."""


class EarlierText(ProposalSource):
    """Copies from the session's own text and from texts that sessions share."""

    copies = True

    def __init__(self, begins_with: Sequence[int], shared: SharedTexts) -> None:
        self._lookup = PromptLookup(begins_with, shared)

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        grow_guesses(tree, self._lookup, last, min(MOST_GUESSED, room), surely, from_tip=from_tip)

    def learn(self, node: int, token: int) -> None:
        self._lookup.append(token)

    def close(self) -> None:
        self._lookup.close()
