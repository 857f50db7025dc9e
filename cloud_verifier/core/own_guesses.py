"""The own drafter's guesses in one session's tree, and what guesses of each level have won."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cloud_verifier.core.nouns import Followers
from common.calibration import Calibration, promised
from common.estimators import RatioEstimator
from common.tree import Node, SpeculationTree

LEAST = math.log(0.01)  # paths less likely than this, seen from the tip, do not enter the tree

SCALE = (0.0, 0.5, 1.5)
"""Tokens that the nodes in a tree promise beyond the first, at least, by coverage: none, few, many."""

PRIOR = ((0.6, 0.65), (0.3, 0.7), (0.1, 0.7))
"""Tokens that the first level wins before it is measured, by coverage; the factor of each further level."""

WEIGHT = 6.0  # steps that an expectation counts for
FADE = 0.5 ** (1 / 40)  # of old steps, with each new one
LEAST_WIN = 1e-3  # tokens; a level that wins less says nothing about the next


def new_pace() -> RatioEstimator:
    """Return an estimator of the tokens that a session writes in the time of a bare step, which has no
    drafts."""
    return RatioEstimator(prior=1.0, prior_weight=4.0, half_life=25.0)


class Decision(NamedTuple):
    """Holds what was decided before a step."""

    tip: int = -1  # id; -1: nothing was asked
    depth: int = 0  # levels to guess; 0: none
    coverage: int = 0  # of the tree by others' nodes


UNASKED = Decision()


class LevelMean(NamedTuple):
    """Holds what a level of guesses does on average in a step for which it is allowed."""

    won: float  # tokens
    cost: float  # tokens that all sessions could have had in the time of its rows
    run: float  # share of steps in which the guess reaches it (`GuessPlan.least_gain`)


@dataclass(slots=True)
class LevelTally:
    """Adds up what a level of guesses did; old steps fade."""

    won: float = 0.0  # as in `LevelMean`
    cost: float = 0.0
    run: float = 0.0  # steps in which the guess reached it
    allowed: float = 0.0  # steps for which it was allowed

    def note(self, won: float, cost: float, run: bool, allowed: bool) -> None:
        self.won = FADE * self.won + won
        self.cost = FADE * self.cost + cost
        self.run = FADE * self.run + run
        self.allowed = FADE * self.allowed + allowed

    def mean(self, expected: LevelMean) -> LevelMean:
        weight = self.allowed + WEIGHT
        return LevelMean(
            (self.won + WEIGHT * expected.won) / weight,
            (self.cost + WEIGHT * expected.cost) / weight,
            (self.run + WEIGHT * expected.run) / weight,
        )


class Wins:
    """Estimates what each level of guesses wins in a step, by the coverage of the tree (`SCALE`).

    What is known of a level fades while it is not allowed. Then it counts as the level above promises it:
    less by the factor between their means over all sessions, `shared`, which learn with this one.
    """

    def __init__(self, depth: int, shared: Wins | None = None) -> None:
        self._shared = shared
        self._tallies = [[LevelTally() for _ in range(depth)] for _ in PRIOR]
        self._means = [list[LevelMean]() for _ in PRIOR]  # by coverage, when asked for

    def means(self, coverage: int) -> list[LevelMean]:
        """Return the means of all levels in a tree of this coverage."""
        if not self._means[coverage]:
            first, factor = PRIOR[coverage]
            before = self._shared.means(coverage) if self._shared is not None else None
            found = list[LevelMean]()
            expected = LevelMean(first, 0.0, 1.0) if before is None else before[0]
            for level, tally in enumerate(self._tallies[coverage]):
                if level and before is not None:
                    factor = min(before[level].won / max(before[level - 1].won, LEAST_WIN), 1.0)
                    expected = before[level]._replace(won=found[-1].won * factor)
                elif level:
                    expected = found[-1]._replace(won=found[-1].won * factor)
                found.append(tally.mean(expected))
            self._means[coverage] = found
        return self._means[coverage]

    def note(
        self, coverage: int, depth: int, run: int, won: Mapping[int, int], cost: Mapping[int, float]
    ) -> None:
        """Learn from a step with guesses of at most `depth` levels, which ended after `run`; `won` and `cost`
        are as in `LevelMean`, by level."""
        for level, tally in enumerate(self._tallies[coverage]):
            allowed = level < depth
            tally.note(won.get(level, 0) * allowed, cost.get(level, 0.0) * allowed, level < run, allowed)
        self._means[coverage] = []
        if self._shared is not None:
            self._shared.note(coverage, depth, run, won, cost)


class OwnGuesses:
    """Keeps the own drafter's guesses in one session's tree. Driven by `VerifySession`.

    Args: tree; calibration, of the drafter's scores; last_position, where a guess would save no step.
    """

    def __init__(
        self, tree: SpeculationTree, calibration: Calibration, last_position: int, wins: Wins
    ) -> None:
        self.calibration = calibration
        self.wins = wins
        self.decision = UNASKED  # before the step to come
        self.num_run = 0  # levels that the last guess reached
        self._tree = tree
        self._last = last_position
        self._said: dict[int, Followers] = {}  # by node id
        self._guessed: set[int] = set()  # ids of nodes that the drafter holds for possible, too
        self._made: dict[int, bool] = {}  # by id of nodes that only it has proposed: see `made`
        self._newest = next(reversed(tree.live))  # id of the newest node at that decision
        self.uncovered = new_pace()  # of steps before which nodes of others covered nothing

    def ask(self, depth: int, coverage: int) -> None:
        """Note a decision for guesses of so many levels, in a tree of this coverage; depth 0: for none."""
        self.decision = Decision(self._tree.tip.id, depth, coverage)
        self._newest = next(reversed(self._tree.live))

    def take(self, guesses: Sequence[Followers]) -> int:
        """Grow the tree by what the drafter says, likely paths only. Return the number of new nodes."""
        tree, before = self._tree, self._tree.num_speculative
        live = tree.live
        self._said = {node: said for node, said in self._said.items() if node in live}
        self._guessed &= live.keys()
        self._made = {node: late for node, late in self._made.items() if node in live}
        for said in guesses:
            node = self._at(said.path)
            if node is None or node.position + 1 >= self._last:
                continue
            self._said[node.id] = said
            least = LEAST - tree.worth(node)
            for token, logprob in zip(
                said.tokens, promised(self.calibration.confidence, said.scores), strict=True
            ):
                if logprob < least:
                    break
                known = token in node.children
                child = tree.grow(node, token, logprob)
                self._guessed.add(child.id)
                if not known or child.id > self._newest:
                    self._made[child.id] = known
        return tree.num_speculative - before

    def observe(self, token: int) -> None:
        """Learn that the target writes `token` after the tip, before the tip moves."""
        said = self._said.pop(self._tree.tip.id, None)
        if said is not None:
            self.calibration.observe(said.scores, said.tokens.index(token) if token in said.tokens else None)

    def guessed(self, node: Node) -> bool:
        """Return whether the drafter has proposed this node, alone or as well as others."""
        return node.id in self._guessed

    def made(self, node: Node) -> bool:
        """Return whether the next step would not have the node without the drafter. A node that an edge
        proposed while the drafter ran would have come too late."""
        came_late = self._made.get(node.id)
        return came_late is not None and (came_late or not node.wire_id)

    def made_rows(self, nodes: Sequence[Node]) -> list[int]:
        """Return the levels of those of a step's `nodes`, the tip first, that are `made`; none if no guesses
        were asked for, which alone pay for rows."""
        if not self.decision.depth or not nodes:
            return []
        first = nodes[0].position + 1
        return [node.position - first for node in nodes[1:] if self.made(node)]

    @property
    def coverage(self) -> int:
        """How well nodes of others cover the text after the tip now, as a step of `SCALE`."""
        tree = self._tree
        others = (node for node in tree.speculative() if node.wire_id or node.id not in self._made)
        promise = sum(math.exp(tree.worth(node)) for node in others)
        return sum(1 for least in SCALE[1:] if promise >= least) if promise else 0

    def settle(self, made: int, num_tokens: int, time: float, rows: Sequence[int], row_price: float) -> int:
        """Learn from a finished step of `num_tokens` tokens what the guesses before it have won; return that
        in tokens.

        Args: made, as in `won_by_level`; time, as in `Guessing.settle`; rows, `made_rows` of the
        step; row_price, the tokens that each of them cost all sessions.
        """
        if not num_tokens:
            return 0
        (_, depth, coverage), self.decision = self.decision, UNASKED
        if not coverage:
            self.uncovered.add(num_tokens, time)
        if not depth:
            return 0
        won = won_by_level(made, num_tokens)
        cost = {level: row_price * count for level, count in Counter(rows).items()}
        self.wins.note(coverage, depth, min(self.num_run, depth), won, cost)
        return sum(won.values())

    def _at(self, path: Sequence[int]) -> Node | None:
        node = self._tree.tip
        for token in path:
            child = node.children.get(token)
            if child is None:
                return None
            node = self._tree.live[child]
        return node


def won_by_level(made: int, num_tokens: int) -> dict[int, int]:
    """Return the tokens that each level of guesses won, from a step of `num_tokens` tokens.

    Bit i of `made`: token i, of level i, was in the tree by the drafter alone. Without that level the text
    would have gone on to token i, which the target writes anyway, and stopped. So the level won the tokens
    after it, up to the one before the next such level. The last token is no node that was evaluated.
    """
    won, level = dict[int, int](), -1
    for place in range(num_tokens - 1):
        if made >> place & 1:
            level = place
        if level >= 0:
            won[level] = won.get(level, 0) + 1
    return won
