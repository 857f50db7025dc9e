"""Block verification: a chain is accepted or cut as a whole (Sun et al. 2024, arXiv 2403.10444, alg. 2).

Token by token, a child that is rejected takes down those below it, however well they fit. Looked at together,
a chain x_1 .. x_n drawn from q_1 .. q_n has the weight

    P_0 = 1,   P_i = min(1, P_(i-1) p_i(x_i) / q_i(x_i)),

and the accepted length is the largest i whose own number is below h_i, with

    h_n = P_n,   h_i = Z_i / (Z_i + 1 - P_i),   Z_i = sum over x of max(P_i p_(i+1)(x) - q_(i+1)(x), 0);

after x_i comes a token from norm(max(P_i p_(i+1) - q_(i+1), 0)), after x_n one of the target's own. The law
is the target's, and no rule for a chain accepts more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cloud_verifier.core.rules.base import FloatArray, Rows, TokenArray, residual, sample
from common.acceptance import Acceptance
from common.chances import BLOCK, Chances


@dataclass(slots=True)
class Chain:
    """First children one below the other, from an evaluated row on; each hangs below the row of its index.

    The last one's own row is there only if the step evaluates it: `rows` then has one more than `tokens`.
    """

    rows: list[int]
    laws: list[FloatArray] = field(default_factory=list)  # the target's [V], of `rows`
    tokens: list[int] = field(default_factory=list)
    drafts: list[tuple[TokenArray, FloatArray]] = field(default_factory=list)  # what `tokens` were drawn from
    weights: list[float] = field(default_factory=lambda: [1.0])  # P_0, P_1, ...


class BlockRule:
    """Decides the chain of first children as one block; other children are met by equality alone.

    Where the token after a cut is, by chance, the one that was cut off, the rest of the chain hangs below the
    text again. It had its say in the cut and is no fresh draw any more, so from there on the target writes
    alone until the walk leaves the chain.
    """

    def decide(self, rows: Rows, chances: Chances) -> dict[int, int]:
        choices, spent = dict[int, int](), list[int]()
        row: int | None = 0
        while row is not None:
            if row in spent:
                last, choices[row] = row, sample(rows, row, rows.law(row), chances)
            else:
                chain = _chain(rows, row)
                length = _accepted(rows, chain, chances)
                choices |= dict(zip(chain.rows, chain.tokens[:length], strict=False))
                if length == len(chain.rows):
                    break  # the last one accepted is the tip of the next step
                last = chain.rows[length]
                choices[last] = sample(rows, last, _weights_after(chain, length), chances)
                spent += chain.rows[length + 1 :]
            row = rows.child(last, choices[last])
        return choices


def block_rule(acceptance: Acceptance) -> BlockRule:
    """Lossless; the best rule for a chain."""
    return BlockRule()


def _chain(rows: Rows, row: int) -> Chain:
    chain = Chain([row])
    below: int | None = row
    while below is not None:
        law, offer = rows.law(below), rows.offer(below)
        chain.laws.append(law)
        if offer.draft is None or not offer.tokens:
            break
        token = offer.tokens[0]
        tokens, shares = offer.draft.after(())
        likely = float(shares[tokens.searchsorted(token)])
        chain.tokens.append(token)
        chain.drafts.append((tokens, shares))
        chain.weights.append(min(1.0, chain.weights[-1] * float(law[token]) / likely))
        below = rows.child(below, token)
        if below is not None:
            chain.rows.append(below)
    return chain


def _accepted(rows: Rows, chain: Chain, chances: Chances) -> int:
    """How many of the chain's tokens: the longest part that is accepted, so the longest is asked first."""
    begin = rows.position(chain.rows[0])
    for length in range(len(chain.tokens), 0, -1):
        if chances.below((BLOCK, begin, length), _chance(chain, length)):
            return length
    return 0


def _chance(chain: Chain, length: int) -> float:
    """h_i of the chain's first i tokens."""
    weight = chain.weights[length]
    if length == len(chain.tokens):
        return weight
    left_over = float(_left_over(chain, length).sum())
    rest = 1.0 - weight
    return left_over / (left_over + rest) if rest > 0.0 else 1.0


def _weights_after(chain: Chain, length: int) -> FloatArray:
    """What the token after the first `length` is drawn from."""
    law = chain.weights[length] * chain.laws[length]
    return law if length == len(chain.tokens) else residual(law, *chain.drafts[length])


def _left_over(chain: Chain, length: int) -> FloatArray:
    """max(P_i p_(i+1) - q_(i+1), 0) [V]."""
    left: FloatArray = chain.weights[length] * chain.laws[length]
    tokens, shares = chain.drafts[length]
    left[tokens] = np.maximum(left[tokens] - shares, 0.0)
    return left
