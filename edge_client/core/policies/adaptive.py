"""Ahead of the delay: depth, width and pace from what the session measures (docs/adaptation.md).

A node is worth the chance that its path is the target's, if it comes in time: before the verifier evaluates
its parent. The verifier never waits, so it moves on while drafts travel. Where it will be is foreseen path by
path: if the path is right, each turn takes all of it that has arrived and one token more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import UserError
from common.tree import Node, SpeculationTree
from edge_client.core.policies.base import (
    PATH_LOGPROB,
    Candidate,
    GrowthView,
    expandable,
    missing_above,
    sort_likeliest_first,
    unsent,
)
from edge_client.core.policies.governor import LOOK_AGAIN, Governed, Governor

SURVIVAL, SURVIVAL_WEIGHT = 0.7, 4
"""The mean promise of a best candidate before any was seen, and how many drafted nodes that counts for."""

SURVIVAL_MEMORY = 100
"""Drafted nodes of which it is the mean: it changes with the text, but over a round trip of twenty turns its
twentieth power is asked for, which magnifies what a shorter mean varies by chance."""

SOON = 3.0
"""What the children of a node that is being drafted are hoped to save, in times what the node itself does."""


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """Bounds; within them everything is measured. None has to be set."""

    max_width: int = 8  # nodes drafted in one step
    max_children: int = 4  # of one node
    max_live: int = 400  # nodes below the tip; bounds the memory and the time that a decision takes
    cut: float = 0.0005  # paths less likely than this, seen from the tip, are not drafted
    send: float = 0.002  # turns that a token sent must save, if the draft were always right; more sends less
    max_steps_per_second: float = 0.0  # draft steps; a power budget, 0 = any number

    def __post_init__(self) -> None:
        for name in ("max_width", "max_children", "max_live"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("cut", "send"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must lie in (0, 1)")
        if not 0 <= self.max_steps_per_second < math.inf:
            raise UserError(
                f"max_steps_per_second is {self.max_steps_per_second}; it must be finite and 0 or more"
            )


class AdaptivePolicy(Governed):
    """Drafts what promises most in time, as wide as a wider step pays for, and sends what can still help."""

    name = "adaptive"
    fill = True

    def __init__(self, settings: AdaptiveSettings | None = None) -> None:
        self.settings = settings or AdaptiveSettings()
        super().__init__(Governor(self.settings.max_steps_per_second))
        self._cut = math.log(self.settings.cut)
        self._survival = SURVIVAL  # chance that a path's next token is its best candidate, as promised
        self._num_promises = SURVIVAL_WEIGHT  # that this is a mean of
        self._foresight = Foresight()
        self._sent_at = 0.0  # seconds, the newest nodes

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        if not len(candidates):
            return ()
        promise = math.exp(candidates[0].logprob)
        self._num_promises = min(self._num_promises + 1, SURVIVAL_MEMORY)
        self._survival += (promise - self._survival) / self._num_promises
        least = self._cut - view.tree.worth(node)
        return [c for c in candidates[: self.settings.max_children] if c.logprob >= least]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= self.settings.max_live or not view.credit_left:
            return ()
        possible = expandable(view)
        if not possible:
            return ()
        step = view.draft_time.predict(1)
        frontier = self._frontier(view, possible, step)
        chosen, promise = self._as_wide_as_it_pays(view, frontier, step)
        if not self.governor.allows(view, promise, step):
            chosen = [max(possible, key=PATH_LOGPROB)] if self.governor.should_look(view) else []
        if chosen:
            self.governor.began(view)
        return chosen

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        if not nodes:
            return nodes
        self._foresight.update(view)
        chosen = self._worth_sending(view, nodes)
        if not chosen and view.now - self._sent_at >= LOOK_AGAIN:
            chosen = nodes[:1]  # the round trip is measured by what is sent, and by nothing else
        sort_likeliest_first(chosen)
        chosen = chosen[: view.credit_left]
        if chosen:
            self._sent_at = view.now
            self._foresight.sent(chosen, view.now)
        return chosen

    def _worth_sending(self, view: GrowthView, nodes: Sequence[Node]) -> list[Node]:
        """Of unsent nodes those that, with what is worth sending below them, save more than they cost, and
        hang on nothing that is left out."""
        price = self.settings.send * self._survival  # a weaker draft's tokens all save less
        gains = dict[int, float]()  # by node, of it and what is worth sending below it
        for node in reversed(nodes):  # children before parents
            gain = gains.get(node.id, 0.0) + self._saved(view, node) - price
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

    def _saved(self, view: GrowthView, node: Node) -> float:
        """Turns that `node` saves on average if it is sent now, and its children while it is being drafted.

        One that comes too late saves none. One in time costs the verifier a row, if the tip is on its path by
        then.
        """
        assert node.parent is not None, "the tip is nobody's to send"
        tree = view.tree
        chance = math.exp(tree.worth(node))
        saved = SOON * chance if node.busy else 0.0
        tip = self._foresight.tip_met(node.parent, view.now)
        if tip is not None:
            saved += chance - self._row_cost(view) * math.exp(tree.worth(tip))
        return saved

    def _row_cost(self, view: GrowthView) -> float:
        """What evaluating one more node costs the verifier, in turns."""
        return min(0.5, view.step_time.per_row / max(view.turn.smoothed, 1e-6))

    def _frontier(self, view: GrowthView, possible: Sequence[Node], step: float) -> list[tuple[float, Node]]:
        """What promises something, most first: the logarithm of the tokens that it may save, and the node."""
        foresight = self._foresight
        foresight.update(view)
        survival = math.log(min(max(self._survival, 1e-3), 0.99))
        sent_at = view.now + step
        found = list[tuple[float, Node]]()
        for node in possible:
            worth = view.tree.worth(node)
            if worth < self._cut:
                continue
            levels = foresight.levels_to_catch_up(node, sent_at, step)
            worth += (1 + levels) * survival  # all of these must be drafted and right before one helps
            if node.children:  # guessed: the draft can only add to them
                worth += _left_open(view.tree, node)
            if worth >= self._cut:
                found.append((worth, node))
        found.sort(key=_promise, reverse=True)
        return found

    def _as_wide_as_it_pays(
        self, view: GrowthView, frontier: Sequence[tuple[float, Node]], step: float
    ) -> tuple[list[Node], float]:
        """The best nodes, and what they promise: one more as long as it promises more per second than the
        step does without it."""
        chosen, total, per_node = list[Node](), 0.0, view.draft_time.per_row
        rows = dict[int, None]()  # nodes that the step evaluates
        for worth, node in frontier[: self.settings.max_width]:
            promise = math.exp(worth)
            missing = missing_above(view.tree, node)
            more = [node.id, *(above.id for above in missing if above.id not in rows)]
            if chosen and promise * (step + per_node * (len(rows) - 1)) < per_node * len(more) * total:
                break
            chosen.append(node)
            rows |= dict.fromkeys(more)
            total += promise
        return chosen, total


class Foresight:
    """When nodes reach the verifier, and where its tip will be then if their paths are right.

    Turns are counted from the newest news on: the tip that it told was there half a round trip before it
    came, and the verifier begins a turn at once, and then one after the other.
    """

    def __init__(self) -> None:
        self._sent_at: dict[int, float] = {}  # seconds, by node id
        self._known: dict[int, tuple[int, int]] = {}  # of sent nodes: the turn they come for, the tip's depth
        self._news_at: float | None = None
        self._began_at = 0.0  # when the verifier had the tip, by this side's clock
        self._turn = 0.03
        self._one_way = 0.0
        self._top = 0  # position of the tip
        self._live: dict[int, Node] = {}

    def update(self, view: GrowthView) -> None:
        """Take in what the view knows now; forget what was foreseen if there is news."""
        tree = view.tree
        self._live = tree.live
        if view.news_at != self._news_at or tree.tip.position != self._top:
            self._news_at = view.news_at
            self._top = tree.tip.position
            self._one_way = 0.5 * view.rtt.smoothed_rtt
            self._turn = max(view.turn.smoothed, 1e-6)
            self._began_at = (view.news_at or 0.0) - self._one_way
            self._sent_at = {node: at for node, at in self._sent_at.items() if node in tree.live}
            self._known = {tree.tip.id: (0, 0)}

    def sent(self, nodes: Sequence[Node], now: float) -> None:
        """These leave now."""
        for node in nodes:
            self._sent_at[node.id] = now

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
        depth = node.position - self._top
        turn, tip = self._arrival(node, sent_at)
        coming = max(turn, self._turn_at(sent_at))
        return depth - (tip if coming == turn else max(tip, depth) + coming - turn)

    def _arrival(self, node: Node, now: float) -> tuple[int, int]:
        """The turn that `node` comes for and the tip's depth then; one that is not sent leaves `now`."""
        missing = list[Node]()
        known = self._known.get(node.id)
        while known is None:
            missing.append(node)
            assert node.parent is not None, "the tip is known"
            node = self._live[node.parent]
            known = self._known.get(node.id)
        turn, tip = known
        for each in reversed(missing):
            sent_at = self._sent_at.get(each.id) if each.wire_id else None
            coming = max(turn, self._turn_at(now if sent_at is None else sent_at))
            if coming > turn:
                tip = max(tip, each.position - 1 - self._top) + coming - turn
                turn = coming
            if sent_at is not None:
                self._known[each.id] = (turn, tip)
        return turn, tip

    def _turn_at(self, sent_at: float) -> int:
        """The first turn that takes what leaves then."""
        return max(0, math.ceil((sent_at + self._one_way - self._began_at) / self._turn))


def _left_open(tree: SpeculationTree, node: Node) -> float:
    """Log of the chance that what follows `node` is none of the children that it has."""
    taken = sum(math.exp(tree.live[child].logprob) for child in node.children.values())
    return math.log(max(1.0 - taken, 1e-3))


def _promise(entry: tuple[float, Node]) -> float:
    return entry[0]
