"""Adapts depth, width and pace of drafting to the session's measurements (docs/adaptation.md).

A node is worth the chance that its path is the target's times the chance that it comes before the verifier
evaluates its parent (`arrival_forecast`).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.errors import UserError
from common.messages import INITIAL_CREDIT, NO_WAIT, Wait
from common.tree import Node, SpeculationTree
from edge_client.core.effects import Mode, ModeStatus
from edge_client.core.policies.arrival_forecast import ArrivalCases, wait_for
from edge_client.core.policies.base import (
    PATH_LOGPROB,
    GrowthPolicy,
    GrowthView,
    Offered,
    as_wide_as_it_pays,
    check_counts,
    check_shares,
    expandable,
    sort_likeliest_first,
    unsent,
)
from edge_client.core.policies.governor import LOOK_AGAIN, Governor

EARLY = 0.25
"""Turns of margin before a node must leave: the turn may begin sooner, and the awaited draft step may end
later."""

SOON = 3.0
"""Expected saving of a drafted node's children, as a multiple of the node's own."""


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """Bounds of the policy, all optional; within them everything is measured."""

    max_width: int = 8  # nodes drafted in one step
    max_children: int = 4  # of one node
    max_live: int = 400  # nodes below the tip; bounds the memory and the time that a decision takes
    cut: float = 0.002  # paths less likely than this, seen from the tip, are not drafted
    send: float = 0.002  # turns that a token sent must save, if the draft were always right; more sends less
    max_steps_per_second: float = 0.0  # draft steps; a power budget, 0 = unlimited

    def __post_init__(self) -> None:
        check_counts(max_width=self.max_width, max_children=self.max_children, max_live=self.max_live)
        check_shares(cut=self.cut, send=self.send)
        if not 0 <= self.max_steps_per_second < math.inf:
            raise UserError(
                f"max_steps_per_second is {self.max_steps_per_second}; it must be finite and 0 or more"
            )


class AdaptivePolicy(GrowthPolicy):
    """Drafts the nodes that promise most in time, as wide as that pays; sends nodes that can still help."""

    name = "adaptive"
    fill = True

    def __init__(self, settings: AdaptiveSettings | None = None) -> None:
        self.settings = settings or AdaptiveSettings()
        self.governor = Governor(self.settings.max_steps_per_second)
        self._holds_back = True
        self._cut = math.log(self.settings.cut)
        self._outlook = ArrivalCases()
        self._sent_at = 0.0  # seconds, the newest nodes

    @property
    def standing(self) -> ModeStatus:
        """The governor's present mode and its reason. The same object until the mode changes."""
        return self.governor.standing

    def hold_nothing_back(self) -> None:
        """Send every node at once from now on, likeliest first, within the credit."""
        self._holds_back = False

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        least = self._cut - view.tree.worth(node)
        return [c for c in candidates[: self.settings.max_children] if c.logprob >= least]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.credit:
            self.governor.refused(view)
        if view.tree.num_speculative >= self.settings.max_live or not view.credit_left:
            return ()
        possible = expandable(view)
        if not possible:
            return ()
        chosen, promise = self._choose(view, possible, view.catch_up_time)
        if view.num_unread:
            # Reading is paid once, so the governor decides as if the draft had read the text already.
            promise = max(promise, self._choose(view, possible, 0.0)[1])
            chosen = chosen or [max(possible, key=PATH_LOGPROB)]
        if not self.governor.allows(view, promise, view.pace.rows.predict(1)):
            chosen = [max(possible, key=PATH_LOGPROB)] if self.governor.should_look(view) else []
        if chosen:
            self.governor.began(view)
        return chosen

    def _choose(self, view: GrowthView, possible: Sequence[Node], reading: float) -> tuple[list[Node], float]:
        """Return the nodes of a step that begins after `reading` seconds, and their promise in tokens."""
        begins_at, outlook = view.now + reading, self._outlook
        outlook.update(view)
        survival = min(max(view.survival.mean, 1e-3), 0.99)
        log_survival = math.log(survival)
        log_news = [math.log(max(each, 1e-3)) for each in view.server.best_news(survival)]

        def promise(node: Node, step: float) -> float:
            """Return the log of the tokens that `node` may save, drafted in a step of so many seconds. All
            further steps take as long."""
            ends_at = begins_at + step
            log_chance = view.tree.worth(node)
            log_chance += outlook.through_missing_levels(node, ends_at, step, log_survival)
            return log_chance + log_news[min(outlook.usual.lead(node, ends_at), len(log_news) - 1)]

        single = view.pace.rows.predict(1)
        return as_wide_as_it_pays(
            view,
            self._frontier(view.tree, possible, lambda node: promise(node, single)),
            self.settings.max_width,
            lambda nodes, step: sum(math.exp(promise(node, step)) for node in nodes),
        )

    def _frontier(
        self, tree: SpeculationTree, possible: Sequence[Node], promise: Callable[[Node], float]
    ) -> list[tuple[float, Node]]:
        """Return the nodes that promise most, `max_width` at most and best first, each after its promise in
        tokens. `promise` gives its log, which is never higher than the node's own worth."""
        best = list[tuple[float, Node]]()
        least = self._cut  # once `best` is full, the lowest promise in it
        for node in sorted(possible, key=PATH_LOGPROB, reverse=True):
            if tree.worth(node) < least:
                break  # so is what follows
            promised = promise(node)
            if promised < least:
                continue
            insort(best, (promised, node), key=lambda each: -each[0])
            del best[self.settings.max_width :]
            if len(best) == self.settings.max_width:
                least = best[-1][0]
        return [(math.exp(promised), node) for promised, node in best]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        if not nodes:
            return nodes
        self._outlook.update(view)
        chosen = self._worth_sending(view, nodes) if self._holds_back else list(nodes)
        if not chosen and view.now - self._sent_at >= LOOK_AGAIN:
            chosen = nodes[:1]  # only sent nodes measure the round trip
        sort_likeliest_first(chosen)
        chosen = chosen[: view.credit_left]
        if chosen:
            self._sent_at = view.now
            self._outlook.usual.sent(chosen, view.now)
        return chosen

    def can_wait(self, view: GrowthView, draft_ends_at: float) -> bool:
        """Return whether nodes that leave at `draft_ends_at` come for the same turn as nodes that leave now.
        One message then serves both. Only under load, which scarce credit shows: there the verifier's time
        for messages counts."""
        if not self._holds_back or view.credit >= INITIAL_CREDIT:
            return False
        if not view.num_sent:  # the verifier has no node of this path, and may soon give no credit
            return False
        self._outlook.update(view)
        early = max(EARLY * view.turn.smoothed, 2.0 * view.rtt.rtt_variance)
        return draft_ends_at + early <= self._outlook.usual.departure(view.now)

    def wait(self, view: GrowthView) -> Wait:
        """Return how long the verifier should wait for nodes after a commit that leaves it none."""
        ahead = self._holds_back and self.standing.mode is Mode.AHEAD
        self._outlook.wait = wait_for(view) if ahead else NO_WAIT
        return self._outlook.wait

    def _worth_sending(self, view: GrowthView, nodes: Sequence[Node]) -> list[Node]:
        """Return the unsent nodes that save more than they cost, counted with the nodes below. No node hangs
        on one left out."""
        price = self.settings.send * view.survival.mean  # each token of a weaker draft saves less
        row_cost = min(
            0.5, view.step_time.per_row / max(view.turn.smoothed, 1e-6)
        )  # the verifier's, in turns
        gains = dict[int, float]()  # by node: its own gain and that of the nodes worth sending below
        for node in reversed(nodes):  # children before parents
            gain = gains.get(node.id, 0.0) + self._saved(view, node, row_cost) - price
            gains[node.id] = gain
            if gain > 0 and node.parent is not None:
                gains[node.parent] = gains.get(node.parent, 0.0) + gain
        left_out = {node.id for node in nodes if gains[node.id] <= 0}
        chosen = list[Node]()
        for node in nodes:  # parents before children
            if node.id in left_out or node.parent in left_out:
                left_out.add(node.id)
            else:
                chosen.append(node)
        return chosen

    def _saved(self, view: GrowthView, node: Node, row_cost: float) -> float:
        """Return the turns that sending `node` now saves on average, its children in draft included. A late
        node saves none; one in time costs a row (`row_cost` turns) if the tip is on its path by then."""
        assert node.parent is not None, "the tip is never sent"
        tree = view.tree
        chance = math.exp(tree.worth(node))
        saved = SOON * chance if node.busy else 0.0
        for likely, forecast in self._outlook.cases:
            tip = forecast.tip_met(node.parent, view.now)
            if tip is not None:
                news = view.server.news(node.position - tip.position - 1)
                saved += likely * (chance * news - row_cost * math.exp(tree.worth(tip)))
        return saved
