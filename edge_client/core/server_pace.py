"""Learns from commits how far the verifier comes by its own guesses."""

from __future__ import annotations

from common.estimators import RatioEstimator
from common.messages import Commit

DEPTHS = 8
"""Depths that are told apart; deeper ones count as the last. Few drafters guess further."""

PRIOR_WEIGHT, HALF_LIFE = 4.0, 50.0  # turns; a text changes its kind within hundreds of tokens


class ServerPace:
    """Estimates what a turn of the verifier brings without this device, and what drafts can add to it.

    Of one that never guesses a turn brings one token, and nothing that a draft says is known there.
    """

    def __init__(self) -> None:
        self._tokens = RatioEstimator(1.0, PRIOR_WEIGHT, HALF_LIFE)
        self._known = [RatioEstimator(0.0, PRIOR_WEIGHT, HALF_LIFE) for _ in range(DEPTHS)]

    @property
    def tokens(self) -> float:
        """Tokens that the verifier writes in a turn without drafts of this device, at least 1."""
        return max(1.0, self._tokens.ratio)

    def news(self, depth: int) -> float:
        """Return the share of right drafts that the verifier does not find by itself. Those right below the
        tip have depth 0."""
        return 1.0 - self._known[min(depth, DEPTHS - 1)].ratio

    def best_news(self, survival: float) -> list[float]:
        """Return, for each of the `DEPTHS`, the greatest share of news on the way down from there, where each
        further node of the path is right with the chance `survival`. A node that is no news leads to others
        that are."""
        best, shares = 0.0, list[float]()
        for depth in reversed(range(DEPTHS)):
            best = max(self.news(depth), survival * best)
            shares.append(best)
        return shares[::-1]

    def learn(self, message: Commit) -> None:
        """Take the commit of one step."""
        num_tokens, guessed = len(message.tokens), message.guessed
        run = (~guessed & (guessed + 1)).bit_length() - 1  # leading tokens that the verifier had guessed
        self._tokens.add(min(run + 1, num_tokens), 1.0)
        for place in range(num_tokens - 1):
            if not message.server_made >> place & 1:
                self._known[min(place, DEPTHS - 1)].add(float(place < run), 1.0)
