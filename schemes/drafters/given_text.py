"""Draft from a given text that the answer probably repeats, as when a file is rewritten with few changes.

The given text is aligned with the answer as far as that is written. While the two agree, the rest of the
given text is a long draft that no model has to make. Where they differ, the alignment is sought anew after
each token.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.estimators import RatioEstimator
from common.prompt_lookup import HALF_LIFE, LEAST, LONGEST, PRIOR_WEIGHT, Guess, copied, grow_guesses
from common.suffix_index import DEPTH, FIRST, GrowingIndex
from common.tree import SpeculationTree
from edge_client.core.proposal_source import ProposalSource

BACK, AHEAD = 16, 128
"""Tokens before and after the expected place among which one equal token is enough: a repeated line, or some
lines left out. Elsewhere two are needed."""

LOOKED_AT = 1024  # places of a match of which the nearest is taken

_Place = tuple[int, int]
"""The place of the next token in the given text, and the number of tokens before it that agree (at most
`LONGEST`)."""


class GivenText(ProposalSource):
    """Aligns given texts with a session's text, and learns how far to trust them.

    The trust depends on the number of tokens that agreed before, so a text that leaves the given ones soon
    gets no more guesses from them.
    """

    copies = True

    def __init__(self, texts: Sequence[Sequence[int]], committed: Sequence[int] = ()) -> None:
        """`texts` are token ids. The answer begins with `committed`, and is expected to begin with the first
        text."""
        self._index = GrowingIndex()
        for text in texts:
            self._index.extend(text)
            self._index.separate()
        self._tail: list[int] = []  # the newest tokens of the session's text
        self._place: _Place = (FIRST, 0)
        self._by_length = [RatioEstimator(_prior(n), PRIOR_WEIGHT, HALF_LIFE) for n in range(LONGEST + 1)]
        for token in committed:
            self.learn(0, token)

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        """Grow as `TokenSource.grow`; doubtful nodes, too."""
        grow_guesses(tree, self.guess, last, room, from_tip=from_tip)

    def learn(self, node: int, token: int) -> None:
        """Learn from a token that the target wrote, and follow it in the given text."""
        expected, length = self._place
        for said in self._index.tokens(expected, 1):
            self._by_length[length].add(float(said == token), 1.0)
        self._tail = [*self._tail[1 - DEPTH :], token]
        self._place = self._follow(self._place, self._tail)

    def guess(
        self, most: int, path: Sequence[int] = (), least: float = LEAST, surely: float = LEAST
    ) -> list[Guess]:
        """Return the tokens that may follow the text and `path`. Arguments: see `PromptLookup`."""
        place, tail = self._place, self._tail
        for token in path:
            tail = [*tail[1 - DEPTH :], token]
            place = self._follow(place, tail)
        at, length = place
        return copied(self._index.tokens(at, most), length, self._trust, least, surely)

    def _trust(self, length: int) -> float:
        return self._by_length[length].ratio

    def _follow(self, place: _Place, tail: Sequence[int]) -> _Place:
        """Return the place after the tail's last token, which was expected at `place`.

        After a difference the longest agreement counts, of equals the nearest. If nothing agrees, the token
        counts as a replacement of the expected one.
        """
        index, (expected, length) = self._index, place
        if index.tokens(expected, 1) == [tail[-1]]:
            return expected + 1, min(length + 1, LONGEST)
        match = index.find(tail)
        away = {at: abs(at - expected - 1) for at in index.places(match, LOOKED_AT)}
        if match.length == 1:
            away = {at: distance for at, distance in away.items() if -BACK < at - expected <= AHEAD}
        if not away:
            return min(expected + 1, index.size), 0
        return min(away, key=away.__getitem__), min(match.length, LONGEST)


def _prior(length: int) -> float:
    """Return the prior chance that the given text goes on as the answer does, after `length` equal tokens."""
    return 1.0 - 0.5 / (1 + length)  # a half at the beginning and after a change, and 0.95 in the midst
