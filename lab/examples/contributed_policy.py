"""An example of a growth policy: a chain of a given depth, whatever the link.

As a part of a package it is an entry point of the group `forerun.policies`: `--policy ruler:depth=8`.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import (
    GrowthPolicy,
    GrowthView,
    Offered,
    can_expand,
    check_counts,
    unsent,
)


class RulerPolicy(GrowthPolicy):
    """Keeps `depth` best tokens ahead of the text, and sends each as soon as it is drafted."""

    name = "ruler"
    fill = True  # the verifier may write on alone meanwhile

    def __init__(self, depth: int = 4) -> None:
        check_counts(depth=depth)
        self._depth = depth

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return candidates[:1]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= min(self._depth, view.credit):
            return ()
        newest = next(reversed(view.tree.live.values()))
        return (newest,) if can_expand(view, newest) else ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        return unsent(view)[: view.credit_left]
