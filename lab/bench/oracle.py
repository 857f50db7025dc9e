"""Makes drafts for a load, from an oracle of a chosen acceptance or from a recorded draft model.

Neither runs a model, so one machine can emulate hundreds of devices. Both know the text that the target
writes without drafts. The session, its policy and the wire are the product's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, Reroot
from lab.bench.load import LoadText
from simulator.events import Draws
from simulator.knowledge import NUM_CANDIDATES, BetaKnowledge, Candidates, Knowledge, ReplayedKnowledge

CONCENTRATION = 2.0
"""Concentration of the Beta distribution of an oracle's confidence, as in the simulator."""


class Oracle:
    """Ranks the right token first with probability `acceptance`, and gives true scores.

    Confidence, ranks and scores are those of the simulator's drafts (`BetaDraft`). At each position, the
    probability that the first candidate is right comes from a Beta distribution with this mean. Scores are
    the logarithms of the true probabilities. All depend only on (seed, text, position), so every scheme
    gets the same draft.
    """

    def __init__(self, text: LoadText, acceptance: float, vocab_size: int, seed: int = 0) -> None:
        self._text = text.whole
        self._vocab_size = vocab_size
        self._knowledge = BetaKnowledge(acceptance, CONCENTRATION, Draws(seed, text.number))

    def truth(self, position: int) -> int:
        return self._text[position]

    def candidates(self, position: int) -> Candidates:
        if position >= len(self._text):
            return self.candidates_off_path(0, position)
        right, truth = self._text[position], self._knowledge.truth(position)
        ranks, scores = self._knowledge.candidates(position)
        wrong = self._wrong(right)
        return tuple(right if rank == truth else wrong[place] for place, rank in enumerate(ranks)), scores

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        _, scores = self._knowledge.candidates_off_path(node, position)
        return self._wrong(node % self._vocab_size), scores

    def _wrong(self, right: int) -> tuple[int, ...]:
        return tuple((right + 1 + place) % self._vocab_size for place in range(NUM_CANDIDATES))


def recording(text: LoadText, said: Sequence[Candidates], seed: int) -> Knowledge:
    """Return the recorded candidates of a real draft as a source of drafts."""
    return ReplayedKnowledge(text.reference, said, -len(text.prompt), Draws(seed, text.number))


@dataclass(slots=True)
class OracleCounts:
    """Counts the drafted tokens of the text's own path, and those whose first candidate was
    right."""

    asked: int = 0
    right: int = 0


class KnowingDrafter:
    """Implements `SessionDrafter` without a model: it looks up which of its nodes lie on the text."""

    def __init__(self, text: LoadText, said: Knowledge) -> None:
        self._text = text.whole
        self._said = said
        self._tip = 0
        self._on_path: set[int] = set()
        self.counts = OracleCounts()

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams) -> None:
        self._tip, self._on_path = tip, {tip}

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        return [self._expand(row) for row in rows]

    def reroot(self, change: Reroot) -> None:
        """Forget the nodes above the new tip and the dead ones."""
        self._on_path.difference_update(node for node, _ in change.committed[:-1])
        self._on_path.difference_update(change.dead)
        if change.committed:
            self._on_path.discard(self._tip)
            self._tip = change.committed[-1][0]

    def _expand(self, row: DraftRow) -> Expansion:
        if self._is_right(row):
            self._on_path.add(row.id)
            tokens, scores = self._said.candidates(row.position + 1)
            self._count(row.position + 1, tokens)
        else:
            tokens, scores = self._said.candidates_off_path(row.id, row.position + 1)
        return Expansion(row.id, tokens, scores)

    def _is_right(self, row: DraftRow) -> bool:
        """Tell whether a row lies on the text. A row without a parent is the tip, which leaves the text if
        the target wrote another one."""
        above = row.parent is None or row.parent in self._on_path
        return above and row.position < len(self._text) and self._text[row.position] == row.token

    def _count(self, position: int, tokens: Sequence[int]) -> None:
        if position < len(self._text):
            self.counts.asked += 1
            self.counts.right += bool(tokens) and tokens[0] == self._text[position]
