"""Implement the acceptance rules by name, for engines (docs/acceptance.md).

An engine makes every choice by the coupled rule and then, for the rare items with an `ask`, calls `decide`
with a function that gives a row's probabilities on the host.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.nouns import Offer, StepItem
from common.acceptance import TOTAL, Acceptance, AcceptanceRule
from common.chances import ACCEPT, BLOCK, SAMPLE, Chances, SeededChances
from common.choice import choose_adjusted
from common.errors import LocalError
from common.sampling import SamplingParams

FloatArray = NDArray[np.float64]
TokenArray = NDArray[np.int64]


class RuleRows:
    """Holds the output rows of one session in a step. The tip is row 0; a child comes after its parent.

    Args: item, with an `ask`; coupled, the coupled rule's choice of each row; law, which gives a row's
    probabilities float64 [V], the target's own after all sampling parameters. It is called only for rows that
    a decision needs, mostly rows on the committed path; hidden, which gives a row's last hidden state [H].
    """

    def __init__(
        self,
        item: StepItem,
        coupled: NDArray[np.int32],
        law: Callable[[int], FloatArray],
        hidden: Callable[[int], FloatArray] | None = None,
    ) -> None:
        if item.ask is None or len(item.ask.offers) != len(item.outputs):
            raise LocalError("a rule needs one offer for each output row")
        self.acceptance = item.ask.acceptance
        self.judge = item.ask.judge
        self._copies, self._sampling = item.ask.copies, item.sampling
        self.law = law
        self._hidden = hidden
        self._offers = item.ask.offers
        self._coupled = coupled
        self._positions = item.positions[item.outputs]
        row_of = {row: output for output, row in enumerate(item.outputs.tolist())}
        parents = item.parents.tolist()
        self._children = {
            (row_of[parents[row]], int(item.tokens[row])): output
            for row, output in row_of.items()
            if parents[row] in row_of
        }

    def offer(self, row: int) -> Offer:
        return self._offers[row]

    def hidden(self, row: int | None) -> FloatArray | None:
        """Return a row's last hidden state [H]; None for no row, and if the engine gives none."""
        return None if row is None or self._hidden is None else self._hidden(row)

    def coupled(self, row: int) -> int:
        return int(self._coupled[row])

    def copy(self, row: int) -> int | None:
        """Return the row of this row's second look; None without one."""
        return self._copies.get(row)

    def chosen(self, row: int, logits: FloatArray) -> int:
        """Return the coupled rule's choice from other logits [V], which hold all sampling parameters."""
        sampling = SamplingParams(0.0 if self._sampling.greedy else 1.0, seed=self._sampling.seed)
        return choose_adjusted(logits.astype(np.float32), sampling, self.position(row) - 1).token

    def position(self, row: int) -> int:
        """Return the position of the row's chosen token."""
        return int(self._positions[row]) + 1

    def child(self, row: int, token: int) -> int | None:
        """Return the row that evaluates this child; None if the step does not evaluate it."""
        return self._children.get((row, token))


Rule = Callable[[RuleRows, Chances], dict[int, int]]
"""Returns the choice of every row on the path that will be committed from row 0. Other rows' choices have no
effect."""


def decide(
    item: StepItem,
    coupled: NDArray[np.int32],
    law: Callable[[int], FloatArray],
    chances: Chances | None = None,
    hidden: Callable[[int], FloatArray] | None = None,
) -> NDArray[np.int32]:
    """Return the choices [O] of an item with an `ask`. Raises `LocalError` if the item has no `ask`.

    `coupled` [O] are the coupled rule's choices; `law` gives an output row's probabilities float64 [V]. Rows
    off the committed path keep the coupled choice. The same drafts always give the same choices. `chances`
    come from the session's seed unless a test passes its own. `hidden` gives an output row's last hidden
    state [H], for a judge that reads them.
    """
    rows = RuleRows(item, coupled, law, hidden)
    choices = coupled.copy()
    rule = RULES[rows.acceptance.rule]
    for row, token in rule(rows, chances or SeededChances(item.sampling.seed)).items():
        choices[row] = token
    return choices


def _row_by_row(rows: RuleRows, choose: Callable[[int], int]) -> dict[int, int]:
    """Walk down from the tip, and decide each row by itself."""
    choices, row = dict[int, int](), 0
    while True:
        choices[row] = choose(row)
        below = rows.child(row, choices[row])
        if below is None:
            return choices
        row = below


def residual(law: FloatArray, tokens: TokenArray, chances: FloatArray) -> FloatArray:
    """Return norm(max(law - q, 0)) [V], where q gives `tokens` [n] these `chances` [n] and no others.

    `law` [V] may sum to less than 1. If rounding leaves nothing over, return `law`.
    """
    left = _left_over(law, tokens, chances)
    total = left.sum()
    return left / total if total > 0.0 else law


def _left_over(law: FloatArray, tokens: TokenArray, chances: FloatArray) -> FloatArray:
    left = law.copy()
    left[tokens] = np.maximum(left[tokens] - chances, 0.0)
    return left


def _sample(rows: RuleRows, row: int, weights: FloatArray, chances: Chances) -> int:
    """Draw what follows the row from `weights` [V]."""
    return chances.pick((SAMPLE, rows.position(row)), weights)


# Rejection sampling, node by node: `rejection`, `specinfer` and the lossy `lenience` and `contrastive`.
#
# One child x, drawn from q, is accepted with the chance min(1, p(x) / q(x)); else the token is drawn from
# norm(max(p - q, 0)). Together that is p (Leviathan et al. 2023, appendix A.1; Chen et al. 2023). With
# several children the residual is the law for the next one (Miao et al. 2024, SpecInfer, alg. 2). Our
# children are drawn without replacement: the j-th child is drawn from the q that its elder siblings have left
# over, and is judged by that q, as the proof requires.
#
# `lenience` accepts a child with the chance min(1, p(x) / (lenience q(x))). Tokens that the draft overrates
# are written up to 1 / lenience times as often as by the target, never more (Leviathan et al. 2023, A.5), and
# others less often.


def _rejection(rows: RuleRows, chances: Chances, most: int | None = 1) -> dict[int, int]:
    """Consider the first `most` children of each node, the elder first; None: all."""
    is_lenient = rows.acceptance.rule is AcceptanceRule.LENIENCE
    lenience = rows.acceptance.lenience if is_lenient else 1.0

    def choose(row: int) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is not None:
            if rows.acceptance.rule is AcceptanceRule.CONTRASTIVE:
                law = _contrasted(law, *offer.draft.after(()), rows.acceptance)
            for turn, token in enumerate(offer.tokens[:most]):
                tokens, shares = offer.draft.after(offer.tokens[:turn])
                likely = float(shares[tokens.searchsorted(token)])
                if chances.below((ACCEPT, place, turn), float(law[token]) / (lenience * likely)):
                    return token
                law = residual(law, tokens, shares)
        return _sample(rows, row, law, chances)

    return _row_by_row(rows, choose)


# Contrastive decoding (Li et al. 2023, arXiv 2210.15097) is rejection sampling from another law than the
# target's (Yuan et al. 2024, arXiv 2311.08981): from p q^-beta over the tokens with p >= alpha max p. It is
# exact for this law. Where no distribution has come, as after the last draft of a chain, the law is p.


def _contrasted(
    law: FloatArray, tokens: TokenArray, shares: FloatArray, acceptance: Acceptance
) -> FloatArray:
    """Return the contrastive law [V] of the target's `law` [V] and the draft's `shares` [n] of `tokens`.

    A token that the draft left out counts with half of the least count: with more it would have been kept,
    unless the draft was cut.
    """
    draft = np.full_like(law, 0.5 / TOTAL)
    draft[tokens] = shares
    weights = np.where(law >= acceptance.alpha * law.max(), law * draft**-acceptance.beta, 0.0)
    contrasted: FloatArray = weights / weights.sum()
    return contrasted


# Drafts drawn with replacement: `spectr` and `spectr-ot` (SpecTr, Sun et al. 2023, arXiv 2310.15141).
#
# The k drafts of a node are independent draws from q, and a token may be among them several times.
#
# `spectr` is k-sequential selection: the drafts are tried in turn, each accepted with the chance
# min(1, p / (r q)). With b(r) = sum of min(q, p / r), some draft is accepted with the chance
# c = 1 - (1 - b)^k, and a token with c / b min(q, p / r). What p has above that is drawn if none is accepted.
# The least r with c <= r b is taken, for which that is nowhere negative.


def _spectr(rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is None:
            return _sample(rows, row, law, chances)
        tokens, shares = offer.draft.after(())
        passed = np.minimum(shares, law[tokens] / _discount(law[tokens], shares, len(offer.tokens)))
        for turn, token in enumerate(offer.tokens):
            index = tokens.searchsorted(token)
            if chances.below((ACCEPT, place, turn), float(passed[index] / shares[index])):
                return token
        once = float(passed.sum())
        accepted = 1.0 - (1.0 - once) ** len(offer.tokens)
        rest = residual(law, tokens, passed * (accepted / once)) if once > 0.0 else law
        return _sample(rows, row, rest, chances)

    return _row_by_row(rows, choose)


def _discount(targets: FloatArray, shares: FloatArray, count: int) -> float:
    """Return r by bisection, for `count` drafts; `targets` [n] are p of the tokens that q gives `shares`."""
    low, high = 1.0, float(count)
    for _ in range(50):  # to the last bit
        r = (low + high) / 2
        once = float(np.minimum(shares, targets / r).sum())
        low, high = (r, high) if 1.0 - (1.0 - once) ** count > r * once else (low, r)
    return high


# `spectr-ot` accepts some draft with the greatest chance that any rule can have for such drafts, the optimal
# transport from drafts to tokens. It first selects one of the k drafts, then accepts the selected token x,
# which is selected with the chance a(x), with min(1, p(x) / a(x)), or draws from norm(max(p - a, 0)). That is
# lossless for every a. The best a is found without the linear program over V^k tuples:
#
# - Which a are possible? The drafts are all in a set S with the chance q(S)^k, and then one of S is selected.
#   So a(S) >= q(S)^k is necessary, and it suffices (below).
# - Which is best? All drafts lie in S with the chance q(S)^k, though the target wants only p(S). At the set
#   with the greatest excess q(S)^k - p(S) no rule rejects less than this excess (Hu et al. 2025, arXiv
#   2502.18779). It begins the order of p / q, because q(S)^k is convex in q(S). `_selection` rejects no more.
# - How is a draft selected? Each token owns a part of the line from 0 to 1 whose length is q(x). Each draft
#   falls on a point of its token's part, and the highest point wins. The k points are uniform, so the
#   winner lies below v with the chance v^k, and a token is selected by the weight v^k of its part. A window
#   of the free line with length q(x) has the weight a(x) somewhere, and the rest of the line then suits the
#   other tokens: a window varies v least, so the rest varies it most.


def _spectr_ot(rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is None:
            return _sample(rows, row, law, chances)
        count = len(offer.tokens)
        tokens, shares = offer.draft.after(())
        parts = _parts(shares, _selection(law[tokens], shares, count), count)
        highest, selected = -1.0, 0
        for turn, token in enumerate(offer.tokens):
            part = parts[int(tokens.searchsorted(token))]
            lengths = np.array([high - low for low, high in part])
            at = part[chances.pick((ACCEPT, place, turn), lengths)][0]
            highest, selected = max((highest, selected), (at, token))
        weights = np.array([_weight(part, count) for part in parts])
        accepted = law[selected] / weights[tokens.searchsorted(selected)]
        if chances.below((ACCEPT, place, count), float(accepted)):
            return selected
        return _sample(rows, row, residual(law, tokens, weights), chances)

    return _row_by_row(rows, choose)


def _selection(targets: FloatArray, shares: FloatArray, count: int) -> FloatArray:
    """Return the chances [n] that the tokens are selected: possible ones that sum to 1, at least p up to the
    set of the greatest excess, and at most p after it."""
    order = np.argsort(targets / shares, kind="stable")
    held = np.concatenate(([0.0], targets[order].cumsum()))
    excess = np.concatenate(([0.0], shares[order].cumsum())) ** count - held
    peak = int(excess.argmax())
    rising = np.maximum.accumulate(excess[: peak + 1])
    falling = np.maximum.accumulate(excess[peak:][::-1])[::-1]
    selection = np.empty_like(targets)
    selection[order] = np.diff(held + np.concatenate((rising, falling[1:])))
    return selection


Part = list[tuple[float, float]]
"""Intervals of the line from 0 to 1, ascending."""


def _parts(shares: FloatArray, selection: FloatArray, count: int) -> list[Part]:
    """Return each token's part, of length `shares` and weight `selection`: a window of the line that the
    tokens before it leave free."""
    parts, free = list[Part](), [(0.0, 1.0)]
    for share, weight in zip(shares.tolist(), selection.tolist(), strict=True):
        part, free = _cut(free, _begin(free, share, weight, count), share)
        parts.append(part)
    return parts


def _begin(free: Part, length: float, weight: float, count: int) -> float:
    """Return where the window of this length and weight begins on the free line, by bisection."""
    ends = list(accumulate(high - low for low, high in free))
    weights = list(accumulate(high**count - low**count for low, high in free))

    def weight_before(place: float) -> float:
        index = min(bisect(ends, place), len(ends) - 1)
        high = free[index][1]
        return weights[index] - float(high**count - (high - ends[index] + place) ** count)

    low, high = 0.0, max(0.0, ends[-1] - length)
    for _ in range(50):  # to the last bit; the law is the target's even if the window is a bit off
        middle = (low + high) / 2
        if weight_before(middle + length) - weight_before(middle) < weight:
            low = middle
        else:
            high = middle
    return high


def _cut(line: Part, begin: float, length: float) -> tuple[Part, Part]:
    """Return the window of the line that starts after `begin` and has this length, and the rest."""
    window, rest, passed, end = Part(), Part(), 0.0, begin + length
    for low, high in line:
        first = min(max(low, low + begin - passed), high)
        last = min(max(low, low + end - passed), high)
        passed += high - low
        if last > first:
            window.append((first, last))
        rest += [(start, stop) for start, stop in ((low, first), (last, high)) if stop > start]
    return window, rest


def _weight(part: Part, count: int) -> float:
    """Return the chance that the highest of `count` uniform points lies in the part."""
    return sum(float(high**count - low**count) for low, high in part)


# The lossy rules `typical`, `topk-gap` and `bild` accept tokens that are plausible for the target.
#
# Each defines which tokens are good enough after a node. Where no child is good enough, the target's own
# choice is taken, made under the shared noise as by the coupled rule. So drafts are made, ranked and sent as
# for the coupled rule, without distributions. The text then depends on which drafts came in time: another
# network may give another text.
#
# `topk-gap` and `bild` were published for chains. In a tree they first take the own choice if a child holds
# it, then the eldest good child. `typical` was published for trees, and takes the longest path of good
# tokens, as Medusa does.
#
# The probabilities are those after the sampling parameters. At temperature 0, where the authors use
# `topk-gap` and `bild`, they are those of the raw logits.

GoodEnough = Callable[[FloatArray, int, Acceptance], bool]
"""Returns whether a token may follow, by the target's probabilities [V]."""


def _lossy(good_enough: GoodEnough, rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        own, tokens = rows.coupled(row), rows.offer(row).tokens
        if not tokens or own in tokens:
            return own
        law = rows.law(row)
        return next((token for token in tokens if good_enough(law, token, rows.acceptance)), own)

    return _row_by_row(rows, choose)


def _typical(rows: RuleRows, chances: Chances) -> dict[int, int]:
    """Accept the longest path of typical tokens, the likeliest among equals (Medusa, Cai et al. 2024).

    The target's own choice follows. If a child that is not typical holds it, the walk goes on below.
    """
    choices = dict[int, int]()
    row: int | None = 0
    while row is not None:
        path = _longest_typical(rows, row)
        choices |= path
        if path:
            last, token = next(reversed(path.items()))
            row = rows.child(last, token)
        if row is not None:
            choices[row] = rows.coupled(row)
            row = rows.child(row, choices[row])
    return choices


def _longest_typical(rows: RuleRows, top: int) -> dict[int, int]:
    """Return the longest path of typical tokens below the row `top`, as choices by row, in order."""
    reached: dict[int, tuple[int, float, dict[int, int]]] = {top: (0, 0.0, {})}
    best, waiting = reached[top], [top]
    while waiting:
        row = waiting.pop()
        length, likelihood, path = reached[row]
        tokens = rows.offer(row).tokens
        law = rows.law(row) if tokens else np.empty(0)
        for token in tokens:
            if not _is_typical(law, token, rows.acceptance):
                continue
            found = length + 1, likelihood + math.log(law[token]), {**path, row: token}
            best = max(best, found, key=lambda each: each[:2])
            below = rows.child(row, token)
            if below is not None:
                reached[below] = found
                waiting.append(below)
    return best[2]


def _is_typical(law: FloatArray, token: int, acceptance: Acceptance) -> bool:
    """Return whether the chance is above min(epsilon, delta exp(-entropy)). The draft's favourites displace
    other typical tokens, so the text is less varied than the target's."""
    kept = law[law > 0.0]
    entropy = float(-(kept * np.log(kept)).sum())  # nats
    return float(law[token]) > min(acceptance.epsilon, acceptance.delta * math.exp(-entropy))


def _is_near_the_top(law: FloatArray, token: int, acceptance: Acceptance) -> bool:
    """Return whether the token is among the `top` likeliest and at most `gap` nats behind the best.

    Source: Xia et al. 2023."""
    likely, best = float(law[token]), float(law.max())
    if likely <= 0.0 or math.log(best / likely) > acceptance.gap:
        return False
    return int(np.count_nonzero(law > likely)) < acceptance.top


def _is_no_surprise(law: FloatArray, token: int, acceptance: Acceptance) -> bool:
    """Return whether the surprise -log p(x) is at most `rollback` nats; else the text is rolled back (BiLD,
    Kim et al. 2023). Its other half, a draft that stops where it is unsure, is the edge's growth policy
    `bild`. At the usual 5 nats nearly all draft tokens pass."""
    return 0.0 < float(law[token]) >= math.exp(-acceptance.rollback)


# The lossy rule `judge` lets pass what a trained judge finds unimportant (AutoJudge, `core.judge`).


def _judged(rows: RuleRows, chances: Chances) -> dict[int, int]:
    judge = rows.judge
    if judge is None:
        raise LocalError("the rule judge has no judge")

    def choose(row: int) -> int:
        own, tokens = rows.coupled(row), rows.offer(row).tokens
        if not tokens or own in tokens:
            return own
        law = rows.law(row)
        passing = (
            token for token in tokens if judge.is_unimportant(law, token, rows.hidden(rows.child(row, token)))
        )
        return next(passing, own)

    return _row_by_row(rows, choose)


# The lossy rule `reflective` decides by the target's law fused with its law at a second look at the draft
# (arXiv 2505.18629). The engine evaluates the second look in the same step (`engine.reflecting`).

LEAST = 1e-12
"""Chance of a token that the second look excludes. Without it one such look would be a veto."""


def _reflective(rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        copy = rows.copy(row)
        if copy is None:
            return rows.coupled(row)
        return rows.chosen(row, fused(rows.law(row), rows.law(copy), rows.acceptance.fusion))

    return _row_by_row(rows, choose)


def fused(law: FloatArray, second: FloatArray, weight: float) -> FloatArray:
    """Return logits float64 [V], (1 - weight) log law + weight log second; -inf where `law` has no chance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logits: FloatArray = (1.0 - weight) * np.log(law) + weight * np.log(np.maximum(second, LEAST))
    logits[law <= 0.0] = -np.inf
    return logits


# Block verification: a chain is accepted or cut as a whole (Sun et al. 2024, arXiv 2403.10444, alg. 2).
#
# Decided token by token, a rejected child discards all tokens below it, however well they fit. As a whole, a
# chain x_1 .. x_n drawn from q_1 .. q_n has the weight
#
#     P_0 = 1,   P_i = min(1, P_(i-1) p_i(x_i) / q_i(x_i)),
#
# and the accepted length is the largest i whose own number is below h_i, with
#
#     h_n = P_n,   h_i = Z_i / (Z_i + 1 - P_i),   Z_i = sum over x of max(P_i p_(i+1)(x) - q_(i+1)(x), 0);
#
# after x_i comes a token from norm(max(P_i p_(i+1) - q_(i+1), 0)), after x_n one of the target's own. The law
# is the target's, and no rule for a chain accepts more.


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


def _block(rows: RuleRows, chances: Chances) -> dict[int, int]:
    """Decide the chain of first children as one block; other children are matched by equality alone.

    The token after a cut may by chance equal the token that was cut off. The rest of the chain has influenced
    the cut and is no fresh draw then, so the target writes alone until the walk leaves the chain.
    """
    choices, spent = dict[int, int](), list[int]()
    row: int | None = 0
    while row is not None:
        if row in spent:
            last, choices[row] = row, _sample(rows, row, rows.law(row), chances)
        else:
            chain = _chain(rows, row)
            length = _accepted(rows, chain, chances)
            choices |= dict(zip(chain.rows, chain.tokens[:length], strict=False))
            if length == len(chain.rows):
                break  # the last one accepted is the tip of the next step
            last = chain.rows[length]
            choices[last] = _sample(rows, last, _weights_after(chain, length), chances)
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
        tokens, shares = offer.draft.after(())
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
    left_over = float(_left_over(weight * chain.laws[length], *chain.drafts[length]).sum())
    rest = 1.0 - weight
    return left_over / (left_over + rest) if rest > 0.0 else 1.0


def _weights_after(chain: Chain, length: int) -> FloatArray:
    """Return the weights from which the token after the first `length` is drawn."""
    law = chain.weights[length] * chain.laws[length]
    return law if length == len(chain.tokens) else residual(law, *chain.drafts[length])


RULES: dict[AcceptanceRule, Rule] = {
    AcceptanceRule.REJECTION: _rejection,  # a chain's rule
    AcceptanceRule.BLOCK: _block,  # the best rule for a chain
    AcceptanceRule.SPECINFER: partial(_rejection, most=None),  # a tree's rule
    AcceptanceRule.LENIENCE: _rejection,
    AcceptanceRule.CONTRASTIVE: partial(_rejection, most=None),
    AcceptanceRule.SPECTR: _spectr,
    AcceptanceRule.SPECTR_OT: _spectr_ot,  # the best rule for one node's children, drawn with replacement
    AcceptanceRule.TYPICAL: _typical,
    AcceptanceRule.TOPK_GAP: partial(_lossy, _is_near_the_top),
    AcceptanceRule.BILD: partial(_lossy, _is_no_surprise),
    AcceptanceRule.JUDGE: _judged,
    AcceptanceRule.REFLECTIVE: _reflective,
}
"""All rules but the coupled rule, which engines implement themselves."""
