"""Learns how far to trust hints: tokens that the verifier or a relay expects after a node.

A verifier may send the choices of an early exit (Mirror-SD, arXiv 2510.13161), a relay those of its own
model. A hint decides nothing: it grows children, and their promise is how often such hints held.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap

from common.calibration import LEAST_MISS
from common.estimators import RatioEstimator
from common.messages import MAX_HINTED
from common.prompt_lookup import HALF_LIFE, PRIOR_WEIGHT, log_chance
from common.tree import Node
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate
from edge_client.core.proposal_source import ProposalSource

MOST_LIVE = 400
"""Live nodes up to which hints grow more, as of `AdaptiveSettings`: bounds memory, and a decision's time."""

FIRST = 0.7
"""Prior chance of a hint's first token, as of a draft's best (`GrowthView.acceptance`); each further token
has half of what is left."""


class Hints(ProposalSource):
    """Keeps the hints at live nodes, and learns how often each place of a hint held.

    Driven by `hear` for each hint, `learn` when the text goes on at a node and `forget` when a node dies.
    """

    listens = True

    def __init__(self) -> None:
        left = [FIRST, *((1.0 - FIRST) * 0.5**place for place in range(1, MAX_HINTED))]
        self._trust = [RatioEstimator(chance, PRIOR_WEIGHT, HALF_LIFE) for chance in left]
        self._said: dict[int, tuple[int, ...]] = {}  # by node id

    def hear(self, view: GrowthView, policy: GrowthPolicy, node: Node, tokens: Sequence[int]) -> None:
        """Note a hint at a live node, in place of an earlier one. Grow its tokens, likeliest first, and doubt
        the node's other children."""
        tree = view.tree
        if node.position >= view.last_position or tree.num_speculative >= MOST_LIVE:
            return
        self._said[node.id] = said = tuple(dict.fromkeys(tokens))
        hinted = self._promised(said)
        if not hinted:
            return
        for child in policy.branch(view, node, list(starmap(TokenCandidate, hinted.items()))):
            tree.grow(node, child.token, child.logprob)
        left = self._left(node.id)
        for child_id in node.children.values():
            below = tree.live[child_id]
            tree.revise(below, hinted.get(below.token, min(below.logprob, left)))

    def weigh(self, node: int, candidates: Sequence[TokenCandidate]) -> Sequence[TokenCandidate]:
        """Return a draft's candidates after a node, best first: those in the hint have its promise, and the
        others share at most what it leaves."""
        said = self._said.get(node)
        if said is None:
            return candidates
        hinted = self._promised(said)
        left = self._left(node)
        weighed = [
            TokenCandidate(token, hinted[token] if token in hinted else min(logprob, left))
            for token, logprob in candidates
        ]
        return sorted(weighed, key=lambda each: -each.logprob)

    def _left(self, node: int) -> float:
        """Return the log chance that a node with a hint goes on with another token."""
        taken = sum(map(math.exp, self._promised(self._said[node]).values()))
        return math.log(max(1.0 - taken, LEAST_MISS))

    def learn(self, node: int, token: int) -> None:
        """Learn from the token that the target wrote after a node."""
        for trust, said in zip(self._trust, self._said.pop(node, ()), strict=False):
            trust.add(float(said == token), 1.0)

    def forget(self, node: int) -> None:
        """Drop the hint at a node that died."""
        self._said.pop(node, None)

    def _promised(self, said: Sequence[int]) -> dict[int, float]:
        return {token: log_chance(trust.ratio) for token, trust in zip(said, self._trust, strict=False)}
