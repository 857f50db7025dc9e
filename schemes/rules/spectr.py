"""Drafts drawn with replacement: `spectr` and `spectr-ot` (SpecTr, Sun et al. 2023, arXiv 2310.15141).

The k drafts of a node are independent draws from q, and a token may be among them several times.

`spectr` is k-sequential selection: the drafts are tried in turn, each accepted with the chance
min(1, p / (r q)). With b(r) = sum of min(q, p / r), some draft is accepted with the chance
c = 1 - (1 - b)^k, and a token with c / b min(q, p / r). What p has above that is drawn if none is accepted.
The least r with c <= r b is taken, for which that is nowhere negative.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate

import numpy as np

from common.chances import ACCEPT, Chances
from schemes.rules.drafts import remaining
from schemes.rules.row_laws import residual, row_by_row, sample
from schemes.rules.rule_rows import FloatArray, RuleRows


def spectr(rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is None:
            return sample(rows, row, law, chances)
        tokens, shares = remaining(offer.draft)
        passed = np.minimum(shares, law[tokens] / _discount(law[tokens], shares, len(offer.tokens)))
        for turn, token in enumerate(offer.tokens):
            index = tokens.searchsorted(token)
            if chances.below((ACCEPT, place, turn), float(passed[index] / shares[index])):
                return token
        once = float(passed.sum())
        accepted = 1.0 - (1.0 - once) ** len(offer.tokens)
        rest = residual(law, tokens, passed * (accepted / once)) if once > 0.0 else law
        return sample(rows, row, rest, chances)

    return row_by_row(rows, choose)


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


def spectr_ot(rows: RuleRows, chances: Chances) -> dict[int, int]:
    def choose(row: int) -> int:
        law, offer, place = rows.law(row), rows.offer(row), rows.position(row)
        if offer.draft is None:
            return sample(rows, row, law, chances)
        count = len(offer.tokens)
        tokens, shares = remaining(offer.draft)
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
        return sample(rows, row, residual(law, tokens, weights), chances)

    return row_by_row(rows, choose)


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
