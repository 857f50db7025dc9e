"""BiLD's fallback: a block ends where the draft is unsure (Kim et al., NeurIPS 2023, arXiv 2302.07863)."""

from __future__ import annotations

import math

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import GrowthView, Offered
from schemes.policies.rounds import StoppingPolicy


class BildPolicy(StoppingPolicy):
    """Ends a block before the first token whose chance is below `fallback`: there the target writes.

    The authors' chance is the draft's own softmax; ours is the calibrated chance that the target agrees.
    Their other half, the rollback, is the acceptance rule `bild`. With the rule `coupled` the text is the
    target's.
    """

    name = "bild"

    def __init__(self, fallback: float = 0.6, block: int = 16) -> None:
        """`fallback` is the authors' default. `block`: 16 tokens with chances of 0.6 are all right once in
        3,500 times."""
        super().__init__(block)
        if not 0.0 <= fallback <= 1.0:
            raise UserError(f"fallback is {fallback}; it must lie in [0, 1]")
        self._least = math.log(fallback) if fallback else -math.inf

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return [each for each in candidates[:1] if each.logprob >= self._least]
