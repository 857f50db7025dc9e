"""AMUSD (arXiv 2410.17375)."""

from __future__ import annotations

from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import GrowthPolicy, GrowthView, Offered, expandable, unsent


class AmusdPolicy(GrowthPolicy):
    """Grows one chain without end, below a verifier that never waits (AMUSD, arXiv 2410.17375)."""

    name = "amusd"
    fill = True

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return candidates[:1]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= self.window(view):
            return ()
        return expandable(view)[-1:]

    def send(self, view: GrowthView) -> Sequence[Node]:
        return unsent(view)[: view.credit_left]

    def window(self, view: GrowthView) -> int:
        """Return how many tokens may be drafted ahead of the tip: as many as the verifier holds."""
        return view.credit
