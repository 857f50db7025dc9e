"""Rejection sampling, node by node: `rejection`, `specinfer` and the lossy `lenience` and `contrastive`.

One child x, drawn from q, is accepted with the chance min(1, p(x) / q(x)); else the token is drawn from
norm(max(p - q, 0)). Together that is p (Leviathan et al. 2023, appendix A.1; Chen et al. 2023). With
several children the residual is the law for the next one (Miao et al. 2024, SpecInfer, alg. 2). Our
children are drawn without replacement: the j-th child is drawn from the q that its elder siblings have left
over, and is judged by that q, as the proof requires.

`lenience` accepts a child with the chance min(1, p(x) / (lenience q(x))). Tokens that the draft overrates
are written up to 1 / lenience times as often as by the target, never more (Leviathan et al. 2023, A.5), and
others less often.
"""

from __future__ import annotations

import numpy as np

from common.acceptance import TOTAL, Acceptance, AcceptanceRule
from common.chances import ACCEPT, Chances
from schemes.rules.drafts import remaining
from schemes.rules.row_laws import TokenArray, residual, row_by_row, sample
from schemes.rules.rule_rows import FloatArray, RuleRows


def rejection(rows: RuleRows, chances: Chances, most: int | None = 1) -> dict[int, int]:
    """Consider the first `most` children of each node, the elder first; None: all."""
    is_lenient = rows.acceptance.rule is AcceptanceRule.LENIENCE
    lenience = rows.acceptance.lenience if is_lenient else 1.0

    def choose(row: int) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is not None and rows.acceptance.rule is AcceptanceRule.CONTRASTIVE:
            law = _contrasted(law, *remaining(offer.draft), rows.acceptance)
        if rows.greedy:
            return int(law.argmax())
        if offer.draft is not None:
            for turn, token in enumerate(offer.tokens[:most]):
                tokens, shares = remaining(offer.draft, offer.tokens[:turn])
                likely = float(shares[tokens.searchsorted(token)])
                if chances.below((ACCEPT, place, turn), float(law[token]) / (lenience * likely)):
                    return token
                law = residual(law, tokens, shares)
        return sample(rows, row, law, chances)

    return row_by_row(rows, choose)


# Contrastive decoding (Li et al. 2023, arXiv 2210.15097) in the form of O'Brien and Lewis (2023, arXiv
# 2309.09117, appendix A) writes from another law than the target's: from p^(1 + beta) q^-beta over the tokens
# with p >= alpha max p. Rejection sampling is exact for it (Yuan et al. 2024, arXiv 2311.08981). At
# temperature 0 its likeliest token is written. Where no distribution has come, as after the last draft of a
# chain, the law is p.


def _contrasted(
    law: FloatArray, tokens: TokenArray, shares: FloatArray, acceptance: Acceptance
) -> FloatArray:
    """Return the contrastive law [V] of the target's `law` [V] and the draft's `shares` [n] of `tokens`.

    A token that the draft left out counts with half of the least count: with more it would have been kept,
    unless the draft was cut.
    """
    draft = np.full_like(law, 0.5 / TOTAL)
    draft[tokens] = shares
    is_plausible = law >= acceptance.alpha * law.max()
    scores = (1.0 + acceptance.beta) * np.log(law[is_plausible]) - acceptance.beta * np.log(
        draft[is_plausible]
    )
    contrasted = np.zeros_like(law)
    contrasted[is_plausible] = np.exp(scores - scores.max())
    contrasted /= contrasted.sum()
    return contrasted


def all_children(rows: RuleRows, chances: Chances) -> dict[int, int]:
    """Consider all children of each node, the elder first: `specinfer` and `contrastive`."""
    return rejection(rows, chances, most=None)
