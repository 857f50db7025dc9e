"""Block verification: a chain is accepted or cut as a whole (Sun et al. 2024, arXiv 2403.10444, alg. 2).

Decided token by token, a rejected child discards all tokens below it, however well they fit. As a whole, a
chain x_1 .. x_n drawn from q_1 .. q_n has the weight

    P_0 = 1,   P_i = min(1, P_(i-1) p_i(x_i) / q_i(x_i)),

and the accepted length is the largest i whose own number is below h_i, with

    h_n = P_n,   h_i = Z_i / (Z_i + 1 - P_i),   Z_i = sum over x of max(P_i p_(i+1)(x) - q_(i+1)(x), 0);

after x_i comes a token from norm(max(P_i p_(i+1) - q_(i+1), 0)), after x_n one of the target's own. The law
is the target's, and no rule for a chain accepts more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.chances import BLOCK, Chances
from schemes.rules.drafts import remaining
from schemes.rules.row_laws import TokenArray, left_over, residual, sample
from schemes.rules.rule_rows import FloatArray, RuleRows


@dataclass(slots=True)
class Chain:
    """Holds a chain of first children from an evaluated row on; each is a child of the row of its index.

    `rows` has one more entry than `tokens` if the step evaluates the last child.
    """

    rows: list[int]
    laws: list[FloatArray] = field(default_factory=list)  # the target's [V], of `rows`
    tokens: list[int] = field(default_factory=list)
    drafts: list[tuple[TokenArray, FloatArray]] = field(default_factory=list)  # distributions of `tokens`
    weights: list[float] = field(default_factory=lambda: [1.0])  # P_0, P_1, ...


def block(rows: RuleRows, chances: Chances) -> dict[int, int]:
    """Decide the chain of first children as one block; other children are matched by equality alone.

    The token after a cut may by chance equal the token that was cut off. The rest of the chain has influenced
    the cut and is no fresh draw then, so the target writes alone until the walk leaves the chain.
    """
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


def _chain(rows: RuleRows, row: int) -> Chain:
    chain = Chain([row])
    below: int | None = row
    while below is not None:
        law, offer = rows.law(below), rows.offer(below)
        chain.laws.append(law)
        if offer.draft is None or not offer.tokens:
            break
        token = offer.tokens[0]
        tokens, shares = remaining(offer.draft)
        likely = float(shares[tokens.searchsorted(token)])
        chain.tokens.append(token)
        chain.drafts.append((tokens, shares))
        chain.weights.append(min(1.0, chain.weights[-1] * float(law[token]) / likely))
        below = rows.child(below, token)
        if below is not None:
            chain.rows.append(below)
    return chain


def _accepted(rows: RuleRows, chain: Chain, chances: Chances) -> int:
    """Return the length of the longest accepted part of the chain."""
    begin = rows.position(chain.rows[0])
    for length in range(len(chain.tokens), 0, -1):
        if chances.below((BLOCK, begin, length), _chance(chain, length)):
            return length
    return 0


def _chance(chain: Chain, length: int) -> float:
    """Return h_i of the chain's first i tokens."""
    weight = chain.weights[length]
    if length == len(chain.tokens):
        return weight
    above = float(left_over(weight * chain.laws[length], *chain.drafts[length]).sum())
    rest = 1.0 - weight
    return above / (above + rest) if rest > 0.0 else 1.0


def _weights_after(chain: Chain, length: int) -> FloatArray:
    """Return the weights from which the token after the first `length` is drawn."""
    law = chain.weights[length] * chain.laws[length]
    return law if length == len(chain.tokens) else residual(law, *chain.drafts[length])
