"""Plans a hierarchy of models: which tiers draft for the target, and how long their blocks are.

The closed form is that of hierarchical speculative decoding (HSD, Globerson et al., arXiv 2510.19705), with
round trips added. Tier i proposes blocks of T tokens to tier j, which verifies them in one step. Of
independent tokens, each accepted with probability a, a step yields (1 - a^(T+1)) / (1 - a) tokens of tier j
(Leviathan 2023, eq. 1). So a token of tier j takes

    pace(j) = (T pace(i) + step(j) + rtt(i, j)) / yield(a, T)

and a token of the lowest tier takes its own step. `pace` rises with the pace of the tier below, so the best
hierarchy is a generalised shortest path: an edge i -> j multiplies by T / yield and adds the rest. A tier
that has more tokens than its block needs is counted as if it kept them.

A tier here waits for each verdict. A device that drafts ahead hides a part of its round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite

from common.errors import UserError

MAX_BLOCK = 64
"""Longest block tried: at an acceptance of 0.98 the 64th token is right once in four times."""


@dataclass(frozen=True, slots=True)
class TierModel:
    """Describes one model. `step_time`, in seconds, is that of a step of one row or of a block's rows."""

    name: str
    step_time: float

    def __post_init__(self) -> None:
        if not (isfinite(self.step_time) and self.step_time > 0):
            raise UserError(f"model {self.name} has a step of {self.step_time} s; it must be above 0")


@dataclass(frozen=True, slots=True)
class TierPair:
    """Describes how well one model drafts for another: `acceptance` of a token, `rtt` in seconds."""

    acceptance: float
    rtt: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance < 1:
            raise UserError(f"an acceptance is {self.acceptance}; it must lie in [0, 1)")
        if not (isfinite(self.rtt) and self.rtt >= 0):
            raise UserError(f"a round trip is {self.rtt} s; it must be finite and 0 or more")

    def tokens(self, block: int) -> float:
        """Return the mean tokens of a step that verifies `block` tokens."""
        return (1.0 - self.acceptance ** (block + 1)) / (1.0 - self.acceptance)


Pairs = Mapping[tuple[str, str], TierPair]
"""By names of drafter and verifier. Models without a pair are not stacked on each other."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Names stacked models, the target last. `blocks` are the tokens that each but the last proposes at
    once; `pace` is the mean time of a token of the target, seconds."""

    models: tuple[str, ...]
    blocks: tuple[int, ...]
    pace: float


def hierarchy(models: Sequence[TierModel], blocks: Sequence[int], pairs: Pairs) -> Hierarchy:
    """Return these stacked models with their pace. Raises `KeyError` for a pair that is missing."""
    pace = models[0].step_time
    for (drafter, verifier), block in zip(pairwise(models), blocks, strict=True):
        pace = _pace(pace, verifier, pairs[drafter.name, verifier.name], block)
    return Hierarchy(tuple(model.name for model in models), tuple(blocks), pace)


def best_hierarchies(models: Sequence[TierModel], pairs: Pairs) -> list[Hierarchy]:
    """Return the fastest hierarchy of one tier (the target alone), of two, of three, and so on.

    `models` is ordered; each drafts for later ones only, and the last is the target. A number of tiers that
    no chain of pairs reaches ends the list.
    """
    fastest = [{model.name: Hierarchy((model.name,), (), model.step_time) for model in models}]
    for _ in models[1:]:
        below, longer = fastest[-1], dict[str, Hierarchy]()
        for place, verifier in enumerate(models):
            stacked = [
                _stacked(below[drafter.name], verifier, pair)
                for drafter in models[:place]
                if drafter.name in below and (pair := pairs.get((drafter.name, verifier.name))) is not None
            ]
            if stacked:
                longer[verifier.name] = min(stacked, key=lambda found: found.pace)
        fastest.append(longer)
    target = models[-1].name
    return [found[target] for found in fastest if target in found]


def farther(pairs: Pairs, target: str, rtt: float) -> Pairs:
    """Return the pairs with the target `rtt` seconds farther from every model."""
    return {
        names: replace(pair, rtt=pair.rtt + rtt) if names[1] == target else pair
        for names, pair in pairs.items()
    }


def gain(found: Sequence[Hierarchy]) -> float:
    """Return how many times as fast the best hierarchy of three tiers or more is as the best of fewer; 1
    where there is none."""
    fewer = min(each.pace for each in found if len(each.models) < 3)
    return max((fewer / each.pace for each in found if len(each.models) > 2), default=1.0)


def _stacked(below: Hierarchy, verifier: TierModel, pair: TierPair) -> Hierarchy:
    """Return the verifier on top, with its best block."""
    pace, block = min((_pace(below.pace, verifier, pair, each), each) for each in range(1, MAX_BLOCK + 1))
    return Hierarchy((*below.models, verifier.name), (*below.blocks, block), pace)


def _pace(below: float, verifier: TierModel, pair: TierPair, block: int) -> float:
    return (block * below + verifier.step_time + pair.rtt) / pair.tokens(block)
