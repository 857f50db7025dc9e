"""Rejection sampling, node by node: `rejection`, `specinfer` and the lossy `lenience`.

One child x, drawn from q: it is accepted with the chance min(1, p(x) / q(x)), else the token is drawn from
norm(max(p - q, 0)). Together that is p (Leviathan et al. 2023, appendix A.1; Chen et al. 2023). Several
children: what is left over is the law that the next one meets (Miao et al. 2024, SpecInfer, alg. 2). Ours are
drawn without replacement, so the j-th meets the q that those before it have left over; given them it is drawn
from exactly that, which is all that the proof asks for.
"""

from __future__ import annotations

from cloud_verifier.core.rules.base import Rows, residual, sample
from common.acceptance import Acceptance
from common.chances import ACCEPT, Chances


class NodeRule:
    """Walks down from the tip and decides each row by itself.

    Args: most, children of a node that are considered; lenience, what q is multiplied by before p is compared
    with it, 1 for the exact rule.
    """

    def __init__(self, most: int, lenience: float = 1.0) -> None:
        self._most = most
        self._lenience = lenience

    def decide(self, rows: Rows, chances: Chances) -> dict[int, int]:
        choices, row = dict[int, int](), 0
        while True:
            choices[row] = self._choose(rows, row, chances)
            below = rows.child(row, choices[row])
            if below is None:
                return choices
            row = below

    def _choose(self, rows: Rows, row: int, chances: Chances) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is not None:
            for turn, token in enumerate(offer.tokens[: self._most]):
                tokens, shares = offer.draft.after(offer.tokens[:turn])
                likely = float(shares[tokens.searchsorted(token)])
                if chances.below((ACCEPT, place, turn), float(law[token]) / (self._lenience * likely)):
                    return token
                law = residual(law, tokens, shares)
        return sample(rows, row, law, chances)


ALL = 2**31


def rejection_rule(acceptance: Acceptance) -> NodeRule:
    """The first child of each node. Lossless; a chain's rule."""
    return NodeRule(most=1)


def specinfer_rule(acceptance: Acceptance) -> NodeRule:
    """Every child, the elder first. Lossless; a tree's rule."""
    return NodeRule(most=ALL)


def lenience_rule(acceptance: Acceptance) -> NodeRule:
    """As `rejection`, but a child is accepted with the chance min(1, p(x) / (lenience q(x))).

    Lossy: tokens that the draft likes too much are written up to 1 / lenience times as often as the target
    would, never more often than that (Leviathan et al. 2023, A.5), and others less often.
    """
    return NodeRule(most=1, lenience=acceptance.lenience)
