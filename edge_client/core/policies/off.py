"""No drafting at all: the verifier streams its text alone (server streaming)."""

from __future__ import annotations

from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import Candidate, GrowthView


class OffPolicy:
    """Never drafts, never sends."""

    name = "off"
    fill = True

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return ()

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        return ()
