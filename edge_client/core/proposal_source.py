"""Defines the sources of proposals beside the draft model, which `Growth` goes through in order."""

from __future__ import annotations

from collections.abc import Sequence

from common.prompt_lookup import PromptLookup, SharedTexts
from common.token_source import CopiedText, TokenSource
from common.tree import Node
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


class EarlierText(CopiedText, ProposalSource):
    """Copies from earlier texts, at most `MOST_GUESSED` tokens at a time."""

    def __init__(self, begins_with: Sequence[int], shared: SharedTexts) -> None:
        super().__init__(PromptLookup(begins_with, shared), MOST_GUESSED)
