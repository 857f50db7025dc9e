"""The edge's part of the acceptance rules that need drafts drawn at random: draws them, and keeps score.

The text has the target's law only if the decision to send a node ignores its token. So a growth policy learns
only a promise made before the draw: from the distribution's shape and from how often such draws came true.
The nodes below a node reveal its token, so no policy weighs whether a node is worth sending
(`AdaptivePolicy.hold_nothing_back`).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from common.acceptance import TOTAL, Draft
from common.chances import Chances
from common.errors import LocalError
from common.estimators import RatioEstimator
from common.messages import MAX_NODES
from common.tree import Node, SpeculationTree
from edge_client.core.coupled import CoupledRule, RuleFacts
from edge_client.core.effects import Expansion
from schemes.rules.drafts import draw, quantised

MOST_DRAWN = 4
"""The most children of a node: the default of the widest policy."""

PEAKS = (0.3, 0.5, 0.7, 0.9)
"""Limits of the likeliest token's chance that sort draws into three classes: below, between and above."""

FIRST = (0.35, 0.5, 0.65, 0.8, 0.93)
LATER = 0.35
"""Initial chances that the first draw comes true, and that a later one does after wrong ones. Round numbers:
texts soon outweigh them."""

WEIGHT, HALF_LIFE = 10.0, 200.0  # draws: what the belief counts as, and for how long one is remembered
LEAST, MOST = 0.01, 0.99


class Drawing:
    """Holds one session's draws and their results. Driven by `DrawnRule`."""

    def __init__(self, chances: Chances, replaces: bool = False) -> None:
        """Draw by `chances`, with replacement if the rule `replaces`."""
        self.replaces = replaces
        self._chances = chances
        self._came_true = [
            [RatioEstimator(first if turn == 0 else LATER, WEIGHT, HALF_LIFE) for turn in range(MOST_DRAWN)]
            for first in FIRST
        ]

    def draw(self, expansion: Expansion) -> Expansion:
        """Draw children after a node; `scores` are log chances up to a constant. The result holds the
        distribution, and promises as scores: nats, not increasing, independent of the tokens drawn."""
        if not expansion.tokens:
            return expansion
        draft = quantised(expansion.tokens, expansion.scores)
        tokens = draw(draft, expansion.id, MOST_DRAWN, self._chances, self.replaces)
        return Expansion(expansion.id, tokens, self._promises(draft, len(tokens)), draft)

    def observe(self, drawn: Expansion, token: int) -> None:
        """Learn that the target wrote `token` after the node above these children."""
        if drawn.draft is None:
            return
        for kind, child in zip(self._kinds(drawn.draft), drawn.tokens, strict=False):
            kind.add(float(child == token), 1.0)
            if child == token:
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


class DrawnRule(CoupledRule):
    """Says how the rules that draw use a draft step's results."""

    takes_guesses = False  # they would bias the draws

    def __init__(self, facts: RuleFacts) -> None:
        super().__init__(facts)
        self._drawing = Drawing(facts.chances, facts.acceptance.rule.replaces)

    def choose(self, expansion: Expansion) -> Expansion:
        return self._drawing.draw(expansion)

    def _chances(self, expansion: Expansion) -> Sequence[float]:
        return expansion.scores

    def grown(self, expansion: Expansion, count: int) -> Expansion:
        if not self._drawing.replaces:
            return expansion
        return replace(expansion, tokens=expansion.tokens[:count], scores=expansion.scores[:count])

    def learn(self, expansion: Expansion, token: int) -> None:
        self._drawing.observe(expansion, token)

    def learn_late(self, expansion: Expansion, token: int) -> None:
        """Learn nothing: it was not drawn from."""

    def outgoing(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the draws to send in place of `nodes`; a repeated draw is its node again. Without
        replacement they are the nodes.

        Whether a draw is considered must not depend on its token. Repeats would make some room, so all
        draws below a node are sent at once or not at all, and each takes room. The policy's choice of the
        eldest decides, whose promise ignores the tokens.
        """
        if not self._drawing.replaces:
            return nodes
        tree = self._view.tree
        live, tip = tree.live, tree.tip
        room = min(self._view.credit_left - self._num_repeats, MAX_NODES)
        sent = dict[int, list[Node]]()  # by the parent's id
        known = {tip.id, *(node.id for node in live.values() if node.wire_id)}
        for parent in dict.fromkeys(node.parent for node in nodes):
            assert parent is not None, "the tip is never sent"
            drawn = [live[live[parent].children[token]] for token in self._expansions[parent].tokens]
            if parent in known and len(drawn) <= room:
                room -= len(drawn)
                sent[parent] = drawn
                known |= {node.id for node in drawn}
        return [node for drawn in sent.values() for node in drawn]

    @property
    def _num_repeats(self) -> int:
        """The number of sent draws that gave a token again, below live nodes."""
        live = self._view.tree.live
        drawn = ((live[parent].children, said.tokens) for parent, said in self._expansions.items())
        sent = (each for each in drawn if any(live[child].wire_id for child in each[0].values()))
        return sum(len(tokens) - len(children) for children, tokens in sent)

    def untold(self, node: Node) -> Draft | None:
        return untold(self._view.tree, self._expansions, node)


def untold(tree: SpeculationTree, drawn: Mapping[int, Expansion], node: Node) -> Draft | None:
    """Return the distribution that travels with `node`: only with the first sent of the children `drawn`
    there (by node id). Raise `LocalError` unless elder children are sent first."""
    assert node.parent is not None, "the tip is never sent"
    if node.wire_id:
        return None  # it was drawn again
    expansion = drawn.get(node.parent)
    if expansion is None or expansion.draft is None:
        raise LocalError(f"node {node.id} is to be sent, but it is not known what it was drawn from")
    sent = sum(1 for child in tree.live[node.parent].children.values() if tree.live[child].wire_id)
    if tuple(dict.fromkeys(expansion.tokens))[sent] != node.token:
        raise LocalError(f"node {node.id} is to be sent before one that was drawn before it")
    return None if sent else expansion.draft
