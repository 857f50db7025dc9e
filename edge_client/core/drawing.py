"""Drafts for rules that need them drawn at random: rounds what the draft model says, draws, and keeps score.

The law of the text is the target's only if whether a node is sent has nothing to do with which token it
holds. So all that a growth policy learns of a drawn node is a promise that was made before it was drawn: from
the shape of the distribution and from how often draws like it came true. It cannot pick winners even if it
wants to. (Policies also must not look at what hangs below an unsent node, `GrowthView.drawn`.)
"""

from __future__ import annotations

import math
from bisect import bisect

from common.chances import Chances
from common.draft import TOTAL, Draft, draw, quantised
from common.estimators import RatioEstimator
from edge_client.core.drafter import Expansion

MOST_DRAWN = 4
"""Children of a node: as many as the widest policy takes by default. The fifth is right once in a hundred."""

PEAKS = (0.3, 0.5, 0.7, 0.9)
"""Draws are told apart by the chance of the likeliest token: below the first of these, between two, above."""

FIRST = (0.35, 0.5, 0.65, 0.8, 0.93)
LATER = 0.35
"""Chance that the first draw comes true, and that a later one does if those before it do not, believed before
any was seen. Near what the demo pair has; forty draws of a kind outweigh them."""

WEIGHT, HALF_LIFE = 10.0, 200.0  # draws: what the belief counts as, and for how long one is remembered
LEAST, MOST = 0.01, 0.99


class Drawing:
    """One session's draws and what became of them. Driven by `EdgeSession`."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._came_true = [
            [RatioEstimator(first if turn == 0 else LATER, WEIGHT, HALF_LIFE) for turn in range(MOST_DRAWN)]
            for first in FIRST
        ]

    def draw(self, found: Expansion) -> Expansion:
        """Children drawn after a node, from what the draft model found there: `scores` are the logarithms of
        its chances up to a constant, finite. In place of scores come promises (nats, not increasing), which
        depend on the distribution alone; the distribution comes with them."""
        if not found.tokens:
            return found
        draft = quantised(found.tokens, found.scores)
        tokens = draw(draft, found.id, MOST_DRAWN, self._chances)
        return Expansion(found.id, tokens, self._promises(draft, len(tokens)), draft)

    def observe(self, drawn: Expansion, token: int) -> None:
        """The target wrote `token` after the node that these children hang below."""
        if drawn.draft is None:
            return
        for turn, (kind, child) in enumerate(zip(self._kinds(drawn.draft), drawn.tokens, strict=False)):
            kind.add(float(child == token), 1.0)
            if child == token or turn + 1 == MOST_DRAWN:
                return

    def _promises(self, draft: Draft, count: int) -> tuple[float, ...]:
        promises, left, most = list[float](), 1.0, 1.0
        for kind in self._kinds(draft)[:count]:
            chance = min(max(kind.ratio, LEAST), MOST)
            most = min(most, left * chance)  # an elder child must never be sent after a younger one
            promises.append(math.log(most))
            left *= 1.0 - chance
        return tuple(promises)

    def _kinds(self, draft: Draft) -> list[RatioEstimator]:
        return self._came_true[bisect(PEAKS, max(draft.counts) / TOTAL)]
