"""The own drafter's guesses in one session's tree, and what guesses of each level have won."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cloud_verifier.core.nouns import Followers
from common.calibration import Calibration, promised
from common.tree import Node, SpeculationTree

LEAST = math.log(0.01)  # paths less likely than this, seen from the tip, do not enter the tree

SCALE = (0.0, 0.5, 1.5)
"""Tokens that the nodes in a tree promise beyond the first, at least, by coverage: none, few, many."""

PRIOR = ((0.6, 0.65), (0.3, 0.7), (0.1, 0.7))
"""Tokens that the first level wins before it is measured, by coverage; the factor of each further level."""

NOT_ASKED = (-1, 0, 0)

WEIGHT = 6.0  # steps that an expectation counts for
FADE = 0.5 ** (1 / 40)  # of old steps, with each new one
LEAST_WIN = 1e-3  # tokens; a level that wins less says nothing about the next


class Wins:
    """Estimates the tokens that each level of guesses wins in a step, by the coverage of the tree (`SCALE`).

    What is known of a level fades while it is not tried. Then it counts as the level above promises it: less
    by the factor between their means over all sessions, `shared`, which learn with this one.
    """

    def __init__(self, depth: int, shared: Wins | None = None) -> None:
        self._shared = shared
        self._won = [[0.0] * depth for _ in PRIOR]  # tokens, by coverage and level
        self._steps = [[0.0] * depth for _ in PRIOR]
        self._means = [list[float]() for _ in PRIOR]  # by coverage, when asked for

    def means(self, coverage: int) -> list[float]:
        """Return the tokens that each level wins in a step, in a tree of this coverage."""
        if not self._means[coverage]:
            first, factor = PRIOR[coverage]
            before = self._shared.means(coverage) if self._shared is not None else None
            found, expected = list[float](), first if before is None else before[0]
            for level, (won, steps) in enumerate(
                zip(self._won[coverage], self._steps[coverage], strict=True)
            ):
                if level and before is not None:
                    factor = min(before[level] / max(before[level - 1], LEAST_WIN), 1.0)
                if level:
                    expected = found[-1] * factor
                found.append((won + WEIGHT * expected) / (steps + WEIGHT))
            self._means[coverage] = found
        return self._means[coverage]

    def note(self, coverage: int, depth: int, won: Mapping[int, int]) -> None:
        """Learn from a step with guesses of `depth` levels; `won` holds its tokens by level."""
        for level in range(len(self._won[coverage])):
            tried = level < depth
            self._won[coverage][level] = FADE * self._won[coverage][level] + (
                won.get(level, 0) if tried else 0
            )
            self._steps[coverage][level] = FADE * self._steps[coverage][level] + tried
        self._means[coverage] = []
        if self._shared is not None:
            self._shared.note(coverage, depth, won)


class OwnGuesses:
    """Keeps the own drafter's guesses in one session's tree. Driven by `VerifySession`.

    Args: tree; calibration, of the drafter's scores; last_position, where a guess would save no step.
    """

    def __init__(
        self, tree: SpeculationTree, calibration: Calibration, last_position: int, wins: Wins
    ) -> None:
        self.calibration = calibration
        self.wins = wins
        self.asked = NOT_ASKED  # tip id, depth and coverage of the tree when guesses were last asked for
        self._tree = tree
        self._last = last_position
        self._said: dict[int, Followers] = {}  # by node id
        self._guessed: set[int] = set()  # ids of nodes that the drafter holds for possible, too
        self._made: set[int] = set()  # ids of nodes that only it has proposed when it did

    def take(self, guesses: Sequence[Followers]) -> int:
        """Grow the tree by what the drafter says, likely paths only. Return the number of new nodes."""
        tree, before = self._tree, self._tree.num_speculative
        live = tree.live
        self._said = {node: said for node, said in self._said.items() if node in live}
        self._guessed, self._made = self._guessed & live.keys(), self._made & live.keys()
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
                child = tree.grow(node, token, logprob).id
                self._guessed.add(child)
                if not known:
                    self._made.add(child)
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
        """Return whether the node would not be there without the drafter."""
        return node.id in self._made and not node.wire_id

    @property
    def coverage(self) -> int:
        """How well nodes of others cover the text after the tip now, as a step of `SCALE`."""
        tree = self._tree
        promise = sum(math.exp(tree.worth(node)) for node in tree.speculative() if not self.made(node))
        return sum(1 for least in SCALE[1:] if promise >= least) if promise else 0

    def settle(self, made: int, num_tokens: int) -> int:
        """Learn from a finished step of `num_tokens` tokens what the guesses before it have won; return that
        in tokens. `made` is as in `won_by_level`."""
        tip, depth, coverage = self.asked
        if tip < 0 or not num_tokens:
            return 0
        self.asked = NOT_ASKED
        won = won_by_level(made, num_tokens)
        self.wins.note(coverage, depth, won)
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
