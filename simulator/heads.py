"""Models a drafter beside the target: how often each level of its guesses is right, and what they take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cloud_verifier.core.engine_protocol import Followers, GuessItem, GuessPlan, GuessResult
from common.errors import UserError
from simulator.events import Draws, DrawStream
from simulator.knowledge import (
    NUM_QUANTILES,
    OUTSIDE,
    Candidates,
    Knowledge,
    beta_scores,
    drawn_rank,
)


@dataclass(frozen=True, slots=True)
class HeadsSpec:
    """Describes heads on the target, or any other drafter beside it. Times in seconds.

    Guesses take `time` + `time_per_level` for each level + `time_per_node` for each node whose followers are
    sought. At each position the confidence is drawn as a `BetaDraft`'s. At a share `likeness` the heads
    are as sure as the device's draft, since what is easy is easy for both.
    """

    accuracy: tuple[float, ...]  # by level: chance that the best guess is right if all above it are
    time: float = 0.001
    time_per_level: float = 0.001
    time_per_node: float = 0.0
    k: float = 2.0
    likeness: float = 0.7

    def __post_init__(self) -> None:
        if not self.accuracy or not all(0 < each < 1 for each in self.accuracy):
            raise UserError(f"heads accuracy is {list(self.accuracy)}; each level needs a number in (0, 1)")
        for name in ("time", "time_per_level", "time_per_node"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"heads {name} is {getattr(self, name)}; it must be finite and 0 or more")
        if not (0 < self.k < math.inf and 0 <= self.likeness <= 1):
            raise UserError(f"heads k is {self.k} and likeness {self.likeness}; above 0, and in [0, 1]")

    def duration(self, depth: int, num_nodes: int) -> float:
        """Return the seconds of guesses of so many levels and nodes."""
        return self.time + self.time_per_level * depth + self.time_per_node * num_nodes if depth else 0.0


def guess(heads: Mapping[int, HeadKnowledge], plan: GuessPlan) -> GuessResult:
    """Guess for all items, level by level, as the engine's drafter does. `heads` are by session."""
    said = [list[Followers]() for _ in plan.items]
    texts = [heads[item.session].levels(item) for item in plan.items]
    for number, level in enumerate(itertools.zip_longest(*texts, fillvalue=((), 0.0))):
        if number and sum(chance for _, chance in level) < plan.least_gain:
            break
        for own, (more, _) in zip(said, level, strict=True):
            own.extend(more)
    return GuessResult(tuple(map(tuple, said)))


class HeadKnowledge:
    """Guesses one session's text from its truth. Everything is a function of (draws, position, level)."""

    def __init__(self, spec: HeadsSpec, knowledge: Knowledge, draws: Draws) -> None:
        self._spec, self._knowledge, self._draws = spec, knowledge, draws
        self._tables = [beta_scores(mean, spec.k) for mean in spec.accuracy]

    def levels(self, item: GuessItem) -> Iterator[tuple[list[Followers], float]]:
        """Yield, level by level, what may follow the tip and then its likeliest descendants, with the chance
        that one of the level's nodes is right."""
        tip = len(item.prefix_slots)
        paths: list[tuple[tuple[int, ...], float, bool]] = [((), 0.0, True)]
        for level in range(min(item.depth, len(self._tables))):
            position, below = tip + level + 1, list[tuple[tuple[int, ...], float, bool]]()
            said, chance = list[Followers](), sum(math.exp(score) for _, score, _ in paths)
            for path, score, right in paths:
                tokens, scores = self._candidates(position, level, path, right)
                said.append(Followers(path, tokens, scores))
                for token, more in zip(tokens[: item.width], scores, strict=False):
                    on_path = right and token == self._knowledge.truth(position)
                    below.append(((*path, token), score + more, on_path))
            yield said, chance
            below.sort(key=lambda each: -each[1])
            paths = below[: item.width]

    def _candidates(self, position: int, level: int, path: tuple[int, ...], right: bool) -> Candidates:
        draws, table = self._draws, self._tables[level]
        alike = draws.uniform(DrawStream.HEAD_LIKENESS, position) < self._spec.likeness
        stream = DrawStream.CONFIDENCE if alike else DrawStream.HEAD_CONFIDENCE
        confidence, scores = table[draws.bits(stream, position) % NUM_QUANTILES]
        tokens = list(self._knowledge.candidates(position)[0])
        if not right:
            turn = draws.bits(DrawStream.HEAD_RANK, position + sum(path)) % len(tokens)
            return tuple(tokens[turn:] + tokens[:turn]), scores[: len(tokens)]
        truth = self._knowledge.truth(position)
        others = [token for token in (*tokens, OUTSIDE) if token != truth]
        place = self._place(position, confidence)
        if place is not None:
            others.insert(place, truth)
        tokens_said = others[: len(scores)]
        return tuple(tokens_said), scores[: len(tokens_said)]

    def _place(self, position: int, confidence: float) -> int | None:
        """Return where the target's token stands among the candidates, as in `BetaKnowledge`."""
        rank = drawn_rank(self._draws.uniform(DrawStream.HEAD_RANK, position), confidence)
        return None if rank is None else rank - 1
