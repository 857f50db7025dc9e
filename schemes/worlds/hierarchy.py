"""Stacks models: which tiers draft for the target, and how long their blocks are.

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
from itertools import pairwise
from typing import NamedTuple

MAX_BLOCK = 64
"""Longest block tried: at an acceptance of 0.98 the 64th token is right once in four times."""


class TierModel(NamedTuple):
    """Describes one model. `step_time`, in seconds, is that of a step of one row or of a block's rows."""

    name: str
    step_time: float


class TierPair(NamedTuple):
    """Describes how well one model drafts for another: `acceptance` (below 1), `rtt` in seconds."""

    acceptance: float
    rtt: float = 0.0

    def tokens(self, block: int) -> float:
        """Return the mean tokens of a step that verifies `block` tokens."""
        return (1.0 - self.acceptance ** (block + 1)) / (1.0 - self.acceptance)


Pairs = Mapping[tuple[str, str], TierPair]
"""By names of drafter and verifier. Models without a pair are not stacked on each other."""


class Hierarchy(NamedTuple):
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
                longer[verifier.name] = min(stacked, key=lambda stack: stack.pace)
        fastest.append(longer)
    target = models[-1].name
    return [stacks[target] for stacks in fastest if target in stacks]


def gain(stacks: Sequence[Hierarchy]) -> float:
    """Return how many times as fast the best hierarchy of three tiers or more is as the best of fewer; 1
    where there is none."""
    fewer = min(stack.pace for stack in stacks if len(stack.models) < 3)
    return max((fewer / stack.pace for stack in stacks if len(stack.models) > 2), default=1.0)


def _stacked(below: Hierarchy, verifier: TierModel, pair: TierPair) -> Hierarchy:
    """Return the verifier on top, with its best block."""
    pace, block = min((_pace(below.pace, verifier, pair, each), each) for each in range(1, MAX_BLOCK + 1))
    return Hierarchy((*below.models, verifier.name), (*below.blocks, block), pace)


def _pace(below: float, verifier: TierModel, pair: TierPair, block: int) -> float:
    return (block * below + verifier.step_time + pair.rtt) / pair.tokens(block)
