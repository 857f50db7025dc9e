"""The edge's part of the acceptance rule `coupled`: the draft's best tokens, with calibrated chances.

Other rules are found by name. A package offers the edge's part of a rule as an entry point of the group
`forerun.edge_rules`, as `schemes` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.acceptance import Acceptance
from common.calibration import Calibration, promised
from common.chances import Chances
from common.errors import LocalError
from common.offers import offer
from common.tree import Node
from edge_client.core.effects import Expansion
from edge_client.core.policies import GrowthView
from edge_client.core.sent_nodes import Untold

GROUP = "forerun.edge_rules"


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """Holds what a rule may read of a session."""

    view: GrowthView
    expansions: Mapping[int, Expansion]  # those of the live nodes of the view's tree, by id
    calibration: Calibration
    acceptance: Acceptance
    chances: Chances  # for a rule that draws


class CoupledRule:
    """Says how an acceptance rule uses a draft step's results. Other rules override what differs."""

    takes_guesses = True  # nodes may come from other sources than the draft model
    untold: Untold | None = None  # the distribution that travels with a node

    def __init__(self, facts: RuleFacts) -> None:
        self._view, self._expansions = facts.view, facts.expansions
        self._calibration = facts.calibration

    def choose(self, expansion: Expansion) -> Expansion:
        """Return the tokens that may become children of a node, in the order of preference."""
        return expansion

    def promised(self, expansion: Expansion) -> Sequence[float]:
        """Return the chance (nats) of each token of `choose`, and count the best one's."""
        chances = self._chances(expansion)
        if len(chances):
            self._view.survival.add(math.exp(chances[0]))
        return chances

    def _chances(self, expansion: Expansion) -> Sequence[float]:
        return promised(self._calibration.confidence, expansion.scores)

    def grown(self, expansion: Expansion, count: int) -> Expansion:
        """Return what to keep of an expansion of which `count` children were grown."""
        return expansion

    def outgoing(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes to send in place of `nodes`, which the policy chose."""
        return nodes

    def learn(self, expansion: Expansion, token: int) -> None:
        """Learn that the target wrote `token` after the node of this expansion."""
        chosen = expansion.tokens.index(token) if token in expansion.tokens else None
        self._calibration.observe(expansion.scores, chosen)

    def learn_late(self, expansion: Expansion, token: int) -> None:
        """Learn likewise from an expansion that came when its node was text."""
        self.promised(expansion)
        self.learn(expansion, token)


def edge_rule(facts: RuleFacts, *, is_coupled: bool) -> CoupledRule:
    """Return the edge's part of the acceptance rule. Raise `LocalError` if no installed package offers it."""
    if is_coupled:
        return CoupledRule(facts)
    name = facts.acceptance.rule.title
    missing = LocalError(f"no installed package offers the edge's part of the acceptance rule {name}")
    rule: CoupledRule = offer(GROUP, name, missing)(facts)
    return rule
