"""An example of a source: after each token, the one that followed it last in this text.

As a part of a package it is an entry point of the group `forerun.sources`. Each session of the edge has one.
"""

from __future__ import annotations

import math

from common.prompt_lookup import LEAST
from common.tree import SpeculationTree
from edge_client.core.proposal_source import ProposalSource

CHANCE = math.log(0.5)
"""Chance in nats that a token follows again; a real source learns it from what the target writes."""

LONGEST = 8  # tokens that are proposed at once


class Followers(ProposalSource):
    """Remembers what followed each token of the text. Its proposals decide nothing: the target does."""

    copies = True

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._newest: int | None = None

    def learn(self, node: int, token: int) -> None:
        if self._newest is not None:
            self._next[self._newest] = token
        self._newest = token

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        if surely > CHANCE or not from_tip:
            return
        node, token = tree.tip, self._newest
        for _ in range(min(room, LONGEST, last - 1 - node.position)):
            token = None if token is None else self._next.get(token)
            if token is None:
                return
            node = tree.grow(node, token, CHANCE)
