"""Drafts for a load: from an oracle of a chosen acceptance, or as a real draft model spoke beforehand.

Neither costs the clients' processor a model, so hundreds of devices fit on one machine. Both know the text
that the target writes without drafts; the session, its policy and the wire are the product's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion, Reroot
from forerun.bench.texts import Text
from simulator.draws import Draws, Stream
from simulator.knowledge import NUM_CANDIDATES, BetaKnowledge, Candidates

LEAST_VOCABULARY = 2 * NUM_CANDIDATES
"""Tokens, so that an oracle finds enough wrong ones."""

CONCENTRATION = 2.0
"""Of the Beta distribution that an oracle's confidence is drawn from; the simulator's own."""


class Said(Protocol):
    """What a draft says of a text."""

    def on_path(self, position: int) -> Candidates:
        """Of the token at `position`, where everything before it is right."""
        ...

    def off_path(self, node: int, position: int) -> Candidates:
        """The same below node `node`, which is wrong or has wrong ancestors."""
        ...


class Oracle:
    """Says the right token first with probability `acceptance`, and how sure it is truthfully.

    Confidence, ranks and scores are those of the simulator's drafts (`BetaDraft`): at each position the
    chance that the first candidate is right is drawn from a Beta distribution with this mean, and the
    scores are the logarithms of the true chances. Everything is a function of (seed, text, position), so
    every scheme meets the same draft. Raises `UserError` for an acceptance outside [0, 1] or a vocabulary
    that is too small.
    """

    def __init__(self, text: Text, acceptance: float, vocab_size: int, seed: int = 0) -> None:
        if not 0.0 <= acceptance <= 1.0:
            raise UserError(f"an oracle's acceptance is {acceptance}; it must lie in [0, 1]")
        if vocab_size < LEAST_VOCABULARY:
            raise UserError(
                f"an oracle needs a vocabulary of {LEAST_VOCABULARY} tokens; this has {vocab_size}"
            )
        self._text = text.whole
        self._vocab_size = vocab_size
        self._knowledge = BetaKnowledge(acceptance, CONCENTRATION, Draws(seed, text.number))

    def on_path(self, position: int) -> Candidates:
        if position >= len(self._text):
            return self.off_path(0, position)
        right, truth = self._text[position], self._knowledge.truth(position)
        ranks, scores = self._knowledge.candidates(position)
        wrong = self._wrong(right)
        return tuple(right if rank == truth else wrong[place] for place, rank in enumerate(ranks)), scores

    def off_path(self, node: int, position: int) -> Candidates:
        _, scores = self._knowledge.candidates_off_path(node, position)
        return self._wrong(node % self._vocab_size), scores

    def _wrong(self, right: int) -> tuple[int, ...]:
        return tuple((right + 1 + place) % self._vocab_size for place in range(NUM_CANDIDATES))


class Recording:
    """What a real draft said before each token of a text, said again. Off the path, where nothing was
    heard, it says what it said at another position, drawn by name; as in the simulator."""

    def __init__(self, text: Text, said: Sequence[Candidates], seed: int = 0) -> None:
        self._first = len(text.prompt)
        self._said = said
        self._draws = Draws(seed, text.number)

    def on_path(self, position: int) -> Candidates:
        place = position - self._first
        return self._said[place] if 0 <= place < len(self._said) else self.off_path(0, position)

    def off_path(self, node: int, position: int) -> Candidates:
        return self._said[self._draws.bits(Stream.OFF_PATH, node) % len(self._said)]


@dataclass(slots=True)
class Counts:
    """How an oracle did: of the text's own tokens that were drafted, those whose first candidate was
    right."""

    asked: int = 0
    right: int = 0


class KnowingDrafter:
    """A `Drafter` that runs no model: it looks up which of its nodes lie on the text."""

    def __init__(self, text: Text, said: Said) -> None:
        self._text = text.whole
        self._said = said
        self._tip = 0
        self._on_path: set[int] = set()
        self.counts = Counts()

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams) -> None:
        self._tip, self._on_path = tip, {tip}

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        return [self._expand(row) for row in rows]

    def reroot(self, change: Reroot) -> None:
        """What lies above the new tip is named no more, and what is dead neither."""
        self._on_path.difference_update(node for node, _ in change.committed[:-1])
        self._on_path.difference_update(change.dead)
        if change.committed:
            self._on_path.discard(self._tip)
            self._tip = change.committed[-1][0]

    def _expand(self, row: DraftRow) -> Expansion:
        if self._is_right(row):
            self._on_path.add(row.id)
            tokens, scores = self._said.on_path(row.position + 1)
            self._count(row.position + 1, tokens)
        else:
            tokens, scores = self._said.off_path(row.id, row.position + 1)
        return Expansion(row.id, tokens, scores)

    def _is_right(self, row: DraftRow) -> bool:
        """A node without a parent is the tip, which the target chose: it is wrong if the text is another
        one."""
        above = row.parent is None or row.parent in self._on_path
        return above and row.position < len(self._text) and self._text[row.position] == row.token

    def _count(self, position: int, tokens: Sequence[int]) -> None:
        if position < len(self._text):
            self.counts.asked += 1
            self.counts.right += bool(tokens) and tokens[0] == self._text[position]
