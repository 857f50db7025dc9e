"""PACER: a learned scorer decides after each block whether to draft on (arXiv 2602.01274)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import GrowthView, Offered, check_counts, check_shares
from schemes.policies.rounds import StoppingPolicy

SUREST = 1e-4
"""Chance of a miss at least: the logit of a surer promise would outweigh all else."""

FARTHEST = 8.0
"""Most nats between the best two candidates, or where there is but one."""

PLACES = 8.0
"""Tokens of a round by which the place is counted, so that all features are of one size."""


SURELY_WRONG = 30.0  # of a logit, negated: there it is the log chance to 1e-13


@dataclass(frozen=True, slots=True)
class StopScorer:
    """Scores the chance that a drafted token is the target's: logistic in five features.

    The default weights give the promise itself, unlearned. `forerun fit` finds others.
    """

    bias: float = 0.0
    chance: float = 1.0  # of the logit of the best candidate's promise
    margin: float = 0.0  # of its lead over the runner-up, nats
    place: float = 0.0  # of the token's place in the round, in `PLACES`
    path: float = 0.0  # of the log chance of all tokens before it in the round

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"pacer's weight {name} is {getattr(self, name)}; it must be finite")

    def score(self, promises: Sequence[float], place: int, path: float) -> float:
        """Return the log chance of the best candidate. `promises` are the candidates' log chances, best
        first and at least one; `place` counts from 0; `path` is the log chance of the tokens before."""
        weights = (self.bias, self.chance, self.margin, self.place, self.path)
        logit = sum(map(mul, weights, features(promises, place, path)))
        return logit if logit < -SURELY_WRONG else -math.log1p(math.exp(-logit))


def features(promises: Sequence[float], place: int, path: float) -> tuple[float, ...]:
    """Return the five features in the order of `StopScorer`'s weights. Arguments: see `StopScorer.score`."""
    chance = min(math.exp(promises[0]), 1.0 - SUREST)
    lead = promises[0] - promises[1] if len(promises) > 1 else FARTHEST
    return 1.0, math.log(chance / (1.0 - chance)), min(lead, FARTHEST), place / PLACES, max(path, -FARTHEST)


class PacerPolicy(StoppingPolicy):
    """Drafts in blocks of `step` tokens, and sends when the chance of all drafted tokens falls below `stop`.

    The authors' scorer is a trained layer on the draft's hidden states; ours is logistic in the draft's
    promises, which any draft gives.
    """

    name = "pacer"

    def __init__(self, step: int = 3, stop: float = 0.4, block: int = 24, **weights: float) -> None:
        """`block` bounds a round; `weights` as of `StopScorer`. At an RTT of 0 ms the best `stop` is 0.5, at
        60 ms 0.3 (target step 30 ms, draft step 5 ms). Raises `UserError`."""
        super().__init__(block)
        check_counts(step=step)
        check_shares(stop=stop)
        self._step, self._stop = step, math.log(stop)
        self._scorer = StopScorer(**weights)
        self._scores: list[float] = []  # log chances of the round's tokens by the scorer

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        if candidates:
            place = node.position - view.tree.tip_position
            promises = [each.logprob for each in candidates]
            self._scores[place:] = [self._scorer.score(promises, place, view.tree.worth(node))]
        return candidates[:1]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        drafted = view.tree.num_speculative
        if drafted and drafted % self._step == 0 and sum(self._scores[:drafted]) < self._stop:
            return ()
        return super().expand(view)
