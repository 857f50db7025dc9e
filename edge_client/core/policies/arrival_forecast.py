"""Predicts when nodes reach the verifier, and where its tip will be then.

The verifier moves on while drafts travel, unless they are close enough to wait for. If a path is right, each
turn takes all of it that has arrived and one token more. A turn without drafts takes the tokens that the
verifier finds by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.messages import NO_WAIT, Wait
from common.tree import Node
from edge_client.core.policies.base import GrowthView

JITTER_FELT, JITTER_TOO_LARGE = 0.1, 0.5
"""Mean deviations of the round trip, in turns, between which jitter is weighed; three points cannot describe
more."""

JITTER_KNOWN = 16
"""Round trips until jitter is known: the estimator starts with half the first, which has faded then."""

SWING, OUTER = 2.17, 1 / 6
"""A normal round trip in three points (Gauss-Hermite): the outer points' mean deviations, and the chance of
each."""


MOST_AWAITED = 15
"""Nodes, one below the other, that a verifier may be asked to wait for."""

CERTAIN = 0.5
"""Share of the rest that would just pay: nodes that come during a bare step are more than those awaited."""

LONGEST = 5.0  # seconds; no user waits for such a step
KNOWN_LINK = 2  # round trips before a verifier is asked to wait


def wait_for(view: GrowthView) -> Wait:
    """Return when the verifier has the next nodes after a commit that leaves it none, and the longest rest
    until then that pays.

    The draft first reads what it did not foresee. A step that waits for nodes brings the tokens that they
    save, too. A bare step begins at once and brings
    its own tokens; the nodes that come meanwhile are of use to the next step if those tokens were foreseen.
    """
    if view.rtt.num_samples < KNOWN_LINK:
        return NO_WAIT
    turn, step = max(view.turn.smoothed, 1e-6), view.pace.rows.predict(1)
    survival = min(max(view.survival.mean, 1e-3), 0.99)
    first = view.rtt.smoothed_rtt + 0.5 * view.rtt.rtt_variance + view.pace.reads.predict(1)
    saved, chance, bare = 0.0, 1.0, view.server.tokens
    best = NO_WAIT
    for count in range(1, MOST_AWAITED + 1):
        chance *= survival
        if (bare + saved + chance) * (turn + (count - 1) * step) <= (bare + saved) * (turn + count * step):
            break
        saved += chance
        due = first + count * step
        most = CERTAIN * (2.0 * turn * (bare + saved) / (2.0 * bare + survival**bare * saved) - turn)
        if max(due, most) >= LONGEST or (0 < best.due_us <= best.most_us and due > most):
            break  # the verifier waits for those so far, and would not for one more
        best = Wait(round(1e6 * due), round(1e6 * max(0.0, most)))
    return best


class ArrivalCases:
    """Predicts arrivals: one case if round trips hardly differ, else an early, a usual and a late one."""

    def __init__(self) -> None:
        sent_at = dict[int, float]()
        self.usual, self._early, self._late = (ArrivalForecast(sent_at) for _ in range(3))
        self.cases: tuple[tuple[float, ArrivalForecast], ...] = ((1.0, self.usual),)  # each with its chance
        self.wait = NO_WAIT  # the verifier was told this, or nearly this

    def update(self, view: GrowthView) -> None:
        """Take in the view's present state."""
        deviation, turn = view.rtt.rtt_variance, view.turn.smoothed
        rest = 0.0 if view.num_sent else _rest(self.wait, turn)
        self.usual.update(view, 0.0, rest)
        felt = JITTER_FELT * turn <= deviation <= JITTER_TOO_LARGE * turn
        if felt and view.rtt.num_samples >= JITTER_KNOWN:
            self._early.update(view, -SWING * deviation, rest)
            self._late.update(view, SWING * deviation, rest)
            self.cases = ((OUTER, self._early), (1.0 - 2.0 * OUTER, self.usual), (OUTER, self._late))
        else:
            self.cases = ((1.0, self.usual),)

    def through_missing_levels(self, node: Node, sent_at: float, step: float, survival: float) -> float:
        """Return the log chance that all levels missing below `node` are right, each with log-probability
        `survival`. Times as for `ArrivalForecast.levels_to_catch_up`."""
        if len(self.cases) == 1:
            return (1 + self.usual.levels_to_catch_up(node, sent_at, step)) * survival
        levels = [(likely, each.levels_to_catch_up(node, sent_at, step)) for likely, each in self.cases]
        chance = sum(likely * math.exp((1 + count) * survival) for likely, count in levels)
        return math.log(chance) if chance > 0.0 else -math.inf


def _rest(wait: Wait, turn: float) -> float:
    """Return the seconds that a verifier without nodes rests, some turns after its commit."""
    left = 1e-6 * wait.due_us % max(turn, 1e-6)
    return left if left <= 1e-6 * wait.most_us else 0.0


class ArrivalForecast:
    """Predicts when nodes reach the verifier, and where its tip will be then if their paths are right.

    Turns are counted from the newest news: its tip was there half a round trip earlier, and turns follow each
    other.
    """

    def __init__(self, sent_at: dict[int, float] | None = None) -> None:
        """Several predictors of the same nodes may share `sent_at`."""
        self._sent_at = {} if sent_at is None else sent_at  # seconds, by node id
        self._known: dict[int, tuple[int, int]] = {}  # sent nodes: the turn they come for, the tip's depth
        # The same of unsent nodes, and the leads of their children, for a departure at `_leaves_at`. Most
        # calls of one decision concern the same few parents.
        self._leaving: dict[int, tuple[int, int]] = {}
        self._leads: dict[int, int] = {}
        self._leaves_at: float | None = None
        self._coming = 0  # the turn of such a node, unless an ancestor comes later
        self._news_at: float | None = None
        self._began_at = 0.0  # when the verifier had the tip, by this side's clock
        self._turn = 0.03
        self._tokens = 1.0  # of a turn without drafts
        self._one_way = 0.0
        self._top = 0  # position of the tip
        self._live: dict[int, Node] = {}

    def update(self, view: GrowthView, later: float = 0.0, rest: float = 0.0) -> None:
        """Take in the view, and drop old predictions if there is news. A round trip takes `later` seconds
        longer, and the verifier rests for `rest` seconds before the turn that takes the next nodes."""
        tree = view.tree
        self._live = tree.live
        if view.news_at != self._news_at or tree.tip.position != self._top:
            self._news_at = view.news_at
            self._top = tree.tip.position
            self._one_way = max(0.0, 0.5 * (view.rtt.smoothed_rtt + later))
            self._turn = max(view.turn.smoothed, 1e-6)
            self._tokens = view.server.tokens
            self._began_at = (view.news_at or 0.0) - self._one_way + rest
            for gone in [node for node in self._sent_at if node not in tree.live]:
                del self._sent_at[gone]
            self._known = {tree.tip.id: (0, 0)}
            self._leaves_at = None

    def sent(self, nodes: Sequence[Node], now: float) -> None:
        """Note that these nodes leave now."""
        for node in nodes:
            self._sent_at[node.id] = now

    def departure(self, now: float) -> float:
        """Return the latest second to leave for this turn; -inf before the verifier has begun."""
        if self._news_at is None:
            return -math.inf
        return self._began_at + self._turn_at(now) * self._turn - self._one_way

    def tip_met(self, parent: int, sent_at: float) -> Node | None:
        """Return the tip when a child of `parent`, sent at `sent_at`, arrives on a right path; None if the
        tip is beyond `parent`."""
        node = self._live[parent]
        if self._news_at is None:
            return next(iter(self._live.values()))  # the verifier has not begun
        for _ in range(lead := self._lead(node, sent_at)):
            assert node.parent is not None, "the tip comes no closer"
            node = self._live[node.parent]
        return node if lead >= 0 else None

    def lead(self, node: Node, sent_at: float) -> int:
        """Return the depth below the tip at which a child of `node`, sent then, arrives on a right path: 0
        for right below it, also if it comes late."""
        return 0 if self._news_at is None else max(0, self._lead(node, sent_at))

    def levels_to_catch_up(self, node: Node, sent_at: float, step: float) -> int:
        """Return the draft steps after `sent_at` until a node below `node` comes in time; a huge number if
        that never happens."""
        if self._news_at is None:
            return 0
        lead = self._lead(node, sent_at)
        if lead >= 0:
            return 0
        gain = 1.0 - self._tokens * step / self._turn  # positions per draft step
        return math.ceil(-lead / gain - 1e-9) if gain > 1e-3 else 1_000_000

    def _lead(self, node: Node, sent_at: float) -> int:
        """Return how many positions a child of `node`, sent then, is ahead of the verifier's need."""
        if sent_at != self._leaves_at:
            self._leaves_at, self._coming = sent_at, self._turn_at(sent_at)
            self._leaving.clear()
            self._leads.clear()
        lead = self._leads.get(node.id)
        if lead is None:
            depth = node.position - self._top
            turn, tip = self._arrival(node)
            ahead = self._coming - turn
            met = tip if ahead <= 0 else max(tip, depth) + round(ahead * self._tokens)
            lead = self._leads[node.id] = depth - met
        return lead

    def _arrival(self, node: Node) -> tuple[int, int]:
        """Return the turn that `node` comes for and the tip's depth then; unsent nodes leave now."""
        missing = list[Node]()
        while (arrival := self._known.get(node.id) or self._leaving.get(node.id)) is None:
            missing.append(node)
            assert node.parent is not None, "the tip is known"
            node = self._live[node.parent]
        turn, tip = arrival
        for each in reversed(missing):
            sent_at = self._sent_at.get(each.id) if each.wire_id else None
            coming = self._coming if sent_at is None else self._turn_at(sent_at)
            if coming > turn:
                tip = max(tip, each.position - 1 - self._top) + round((coming - turn) * self._tokens)
                turn = coming
            (self._leaving if sent_at is None else self._known)[each.id] = (turn, tip)
        return turn, tip

    def _turn_at(self, sent_at: float) -> int:
        """Return the first turn that takes nodes sent then."""
        return max(0, math.ceil((sent_at + self._one_way - self._began_at) / self._turn))
