"""When nodes reach the verifier, and where its tip will be by then.

The verifier never waits, so it moves on while drafts travel. Where it will be is foreseen path by path: if
the path is right, each turn takes all of it that has arrived and one token more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import GrowthView

JITTER_FELT, JITTER_TOO_LARGE = 0.1, 0.5
"""Mean deviation of the round trip, in turns, from which on and up to which is weighed what comes sooner or
later: three points are too few for a spread of several turns, and brought nothing there."""

JITTER_KNOWN = 16
"""Round trips until it is: the estimator begins with a deviation of half the first, which has faded then."""

SWING, OUTER = 2.17, 1 / 6
"""A normal round trip in three points (Gauss-Hermite): the outer two lie so many mean deviations off the mean
and have this chance each."""


class Outlook:
    """What may come to pass: one case if round trips hardly differ, else an early, a usual and a late one."""

    def __init__(self) -> None:
        sent_at = dict[int, float]()
        self._usual, self._early, self._late = (Foresight(sent_at) for _ in range(3))
        self.cases: tuple[tuple[float, Foresight], ...] = ((1.0, self._usual),)  # each with its chance

    def update(self, view: GrowthView) -> None:
        """Take in what the view knows now."""
        deviation, turn = view.rtt.rtt_variance, view.turn.smoothed
        self._usual.update(view)
        felt = JITTER_FELT * turn <= deviation <= JITTER_TOO_LARGE * turn
        if felt and view.rtt.num_samples >= JITTER_KNOWN:
            self._early.update(view, -SWING * deviation)
            self._late.update(view, SWING * deviation)
            self.cases = ((OUTER, self._early), (1.0 - 2.0 * OUTER, self._usual), (OUTER, self._late))
        else:
            self.cases = ((1.0, self._usual),)

    def sent(self, nodes: Sequence[Node], now: float) -> None:
        """These leave now."""
        self._usual.sent(nodes, now)  # and so with the others

    def departure(self, now: float) -> float:
        """The latest that what leaves now can leave and still come for the same turn, seconds; usually.
        Minus infinity before the verifier has begun."""
        return self._usual.departure(now)

    def through_missing_levels(self, node: Node, sent_at: float, step: float, survival: float) -> float:
        """Log of the chance that all is right which must be drafted below `node` before something helps; each
        level is so with the log-probability `survival`. Times as for `Foresight.levels_to_catch_up`."""
        levels = [(likely, each.levels_to_catch_up(node, sent_at, step)) for likely, each in self.cases]
        if len(levels) == 1:
            return (1 + levels[0][1]) * survival
        chance = sum(likely * math.exp((1 + count) * survival) for likely, count in levels)
        return math.log(chance) if chance > 0.0 else -math.inf


class Foresight:
    """When nodes reach the verifier, and where its tip will be then if their paths are right.

    Turns are counted from the newest news on: the tip that it told was there half a round trip before it
    came, and the verifier begins a turn at once, and then one after the other.
    """

    def __init__(self, sent_at: dict[int, float] | None = None) -> None:
        """`sent_at` may be shared by several that foresee the same nodes."""
        self._sent_at = {} if sent_at is None else sent_at  # seconds, by node id
        self._known: dict[int, tuple[int, int]] = {}  # of sent nodes: the turn they come for, the tip's depth
        # The same of unsent ones, and how far children are ahead, for what leaves at `_leaves_at`: most
        # questions of one decision are about the same few parents.
        self._leaving: dict[int, tuple[int, int]] = {}
        self._leads: dict[int, int] = {}
        self._leaves_at: float | None = None
        self._coming = 0  # the turn that it comes for if nothing above it comes later
        self._news_at: float | None = None
        self._began_at = 0.0  # when the verifier had the tip, by this side's clock
        self._turn = 0.03
        self._one_way = 0.0
        self._top = 0  # position of the tip
        self._live: dict[int, Node] = {}

    def update(self, view: GrowthView, later: float = 0.0) -> None:
        """Take in what the view knows now; forget what was foreseen if there is news.

        A round trip is taken to be `later` seconds longer than its mean.
        """
        tree = view.tree
        self._live = tree.live
        if view.news_at != self._news_at or tree.tip.position != self._top:
            self._news_at = view.news_at
            self._top = tree.tip.position
            self._one_way = max(0.0, 0.5 * (view.rtt.smoothed_rtt + later))
            self._turn = max(view.turn.smoothed, 1e-6)
            self._began_at = (view.news_at or 0.0) - self._one_way
            for gone in [node for node in self._sent_at if node not in tree.live]:
                del self._sent_at[gone]
            self._known = {tree.tip.id: (0, 0)}
            self._leaves_at = None

    def sent(self, nodes: Sequence[Node], now: float) -> None:
        """These leave now."""
        for node in nodes:
            self._sent_at[node.id] = now

    def departure(self, now: float) -> float:
        """`Outlook.departure`."""
        if self._news_at is None:
            return -math.inf
        return self._began_at + self._turn_at(now) * self._turn - self._one_way

    def tip_met(self, parent: int, sent_at: float) -> Node | None:
        """Where the tip is when a child of `parent`, sent then, comes, if the path is right; None if that is
        beyond `parent`, so that the child comes too late."""
        node = self._live[parent]
        if self._news_at is None:
            return next(iter(self._live.values()))  # the verifier has not begun
        for _ in range(lead := self._lead(node, sent_at)):
            assert node.parent is not None, "the tip comes no closer"
            node = self._live[node.parent]
        return node if lead >= 0 else None

    def levels_to_catch_up(self, node: Node, sent_at: float, step: float) -> int:
        """Draft steps beyond the one that ends at `sent_at` until something below `node` comes in time; a
        number beyond any text if the draft is no faster than the verifier."""
        if self._news_at is None:
            return 0
        lead = self._lead(node, sent_at)
        if lead >= 0:
            return 0
        gain = 1.0 - step / self._turn  # positions per draft step
        return math.ceil(-lead / gain - 1e-9) if gain > 1e-3 else 1_000_000

    def _lead(self, node: Node, sent_at: float) -> int:
        """How many positions a child of `node`, sent then, is ahead of what the verifier still needs."""
        if sent_at != self._leaves_at:
            self._leaves_at, self._coming = sent_at, self._turn_at(sent_at)
            self._leaving.clear()
            self._leads.clear()
        lead = self._leads.get(node.id)
        if lead is None:
            depth = node.position - self._top
            turn, tip = self._arrival(node)
            ahead = self._coming - turn
            lead = self._leads[node.id] = depth - (tip if ahead <= 0 else max(tip, depth) + ahead)
        return lead

    def _arrival(self, node: Node) -> tuple[int, int]:
        """The turn that `node` comes for and the tip's depth then; an unsent one leaves with the rest."""
        missing = list[Node]()
        while (found := self._known.get(node.id) or self._leaving.get(node.id)) is None:
            missing.append(node)
            assert node.parent is not None, "the tip is known"
            node = self._live[node.parent]
        turn, tip = found
        for each in reversed(missing):
            sent_at = self._sent_at.get(each.id) if each.wire_id else None
            coming = self._coming if sent_at is None else self._turn_at(sent_at)
            if coming > turn:
                tip = max(tip, each.position - 1 - self._top) + coming - turn
                turn = coming
            (self._leaving if sent_at is None else self._known)[each.id] = (turn, tip)
        return turn, tip

    def _turn_at(self, sent_at: float) -> int:
        """The first turn that takes what leaves then."""
        return max(0, math.ceil((sent_at + self._one_way - self._began_at) / self._turn))
