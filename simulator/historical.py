"""Implements published schemes as growth policies of the same two machines (docs/schemes.md).

Each keeps its defining idea: how long a block is, what is drafted while a verdict travels, and whether
the verifier goes on alone. Times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from common.tree import Node
from edge_client.core.policies import GrowthPolicy, GrowthView, SyncPolicy, TokenCandidate
from edge_client.core.policies.base import can_expand, expandable, likeliest_first, unsent

MAX_BLOCK = 24
"""Longest block that a rule may ask for; at acceptance 0.9 one more gains less than 0.1 token."""


def round_time(view: GrowthView, block: int) -> float:
    """Return the seconds of a synchronous round of `block` drafted tokens, by the view's measurements."""
    steps = view.pace.rows.predict(1) * block + view.step_time.predict(block + 1)
    return steps + view.rtt.smoothed_rtt


def tokens_per_round(block: int, acceptance: float) -> float:
    """Return a block's mean number of tokens: 1 + a + ... + a**block (Leviathan 2023, eq. 1)."""
    return sum(acceptance**place for place in range(block + 1))


def delay_optimal_block(view: GrowthView) -> int:
    """Return the block with the least round time per token at the view's acceptance (arXiv 2606.20591)."""
    acceptance = min(1.0, view.acceptance.ratio)
    return min(range(1, MAX_BLOCK + 1), key=lambda k: round_time(view, k) / tokens_per_round(k, acceptance))


class DelayOptimalPolicy(SyncPolicy):
    """Synchronous blocks whose length follows the delay, after UCB-SpecStop (arXiv 2606.20591).

    Every length is an arm of a bandit whose index is a ratio of sums, time over tokens, less a bonus that
    shrinks as the arm is known. The geometric law at the measured acceptance stands for `PRIOR_ROUNDS` rounds
    of each arm; a round of k tokens counts for every shorter arm, too: it shows their outcome.
    """

    name = "sync_delay_optimal"
    PRIOR_ROUNDS = 20.0

    def __init__(self, beta: float = 0.01) -> None:
        super().__init__(block=1)
        self._beta = beta  # seconds; weight of the bonus
        self._rounds = [0] * (MAX_BLOCK + 1)  # by length
        self._tokens = [0] * (MAX_BLOCK + 1)
        self._num_rounds = 0
        self._sent_from: int | None = None  # tip position of the block in flight

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.num_sent and not view.tree.num_speculative:
            self._count_round(view)
            self.block = min(range(1, MAX_BLOCK + 1), key=lambda k: self.index(view, k))
        return super().expand(view)

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = super().send(view)
        if nodes:
            self._sent_from = view.tree.tip_position
        return nodes

    def index(self, view: GrowthView, block: int) -> float:
        """Return optimistic seconds per token: the arm with the least is taken."""
        expected = tokens_per_round(block, min(1.0, view.acceptance.ratio))
        rounds = self._rounds[block] + self.PRIOR_ROUNDS
        tokens = self._tokens[block] + self.PRIOR_ROUNDS * expected
        bonus = self._beta * math.sqrt(rounds * math.log(self._num_rounds + 1)) / tokens
        return round_time(view, block) * rounds / tokens - bonus

    def _count_round(self, view: GrowthView) -> None:
        if self._sent_from is None:
            return
        tokens, self._sent_from = view.tree.tip_position - self._sent_from, None
        self._num_rounds += 1
        for block in range(1, self.block + 1):
            self._rounds[block] += 1
            self._tokens[block] += min(tokens, block + 1)


class AmusdPolicy:
    """Grows one chain without end, below a verifier that never waits (AMUSD, arXiv 2410.17375)."""

    name = "amusd"
    fill = True

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        return candidates[:1]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= self.window(view):
            return ()
        return expandable(view)[-1:]

    def send(self, view: GrowthView) -> Sequence[Node]:
        return unsent(view)[: view.credit_left]

    def window(self, view: GrowthView) -> int:
        """Return how many tokens may be drafted ahead of the tip: as many as the verifier holds."""
        return view.credit


class PearlPolicy(AmusdPolicy):
    """Sends a chain in chunks as long as a target step (PEARL, arXiv 2408.11850).

    While a chunk is verified the next is drafted (post-verify); while the first chunk after a miss is drafted
    the verifier finds what follows the tip by itself (pre-verify, here the fill).
    """

    name = "pearl"

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes, chunk = unsent(view), self.chunk(view)
        if not nodes:
            return ()
        ends = nodes[-1].position >= view.last_position or view.tree.num_speculative >= view.credit
        whole = len(nodes) if ends else len(nodes) - len(nodes) % chunk
        return nodes[: min(whole, view.credit_left)]

    def chunk(self, view: GrowthView) -> int:
        """Return the tokens drafted within one target step, the ratio of speeds that the paper finds best."""
        speeds = _ratio(view.step_time.predict(1), view.pace.rows.predict(1))
        return max(1, min(MAX_BLOCK, view.credit, speeds))


class PicoSpecPolicy(AmusdPolicy):
    """Grows a chain just long enough to be drafted while a verdict travels (PicoSpec, arXiv 2603.19133).

    What has been drafted goes out at once and the verifier takes it as a partial block; it never goes on
    alone.
    """

    name = "picospec"
    fill = False

    def window(self, view: GrowthView) -> int:
        """Return n so that drafting n tokens takes a round trip and a target step."""
        away = view.rtt.smoothed_rtt + view.step_time.predict(1)
        return max(1, min(view.credit, _ratio(away, view.pace.rows.predict(1))))


class SpecEdgePolicy:
    """Sends a tree per round trip, and grows one ahead of the verdict (SpecEdge, arXiv 2505.17052).

    While a tree is in flight its likeliest leaf and that leaf's likeliest successor are taken for the verdict
    and the next tree is grown there. If both are right it is sent at once, else it dies and a new one begins.
    """

    name = "specedge"
    fill = False

    def __init__(self, budget: int = 32, depth: int = 4, beam: int = 8, children: int = 4) -> None:
        self._budget = budget  # nodes sent at once
        self._depth = depth  # draft steps of one tree
        self._beam = beam  # nodes drafted in one step
        self._children = children  # of one node

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        return candidates[: self._children]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.num_sent:
            return self._next_level(view, view.tree.tip)
        leaf = best_sent_leaf(view)
        if can_expand(view, leaf):
            return [leaf]
        children = [view.tree.live[child] for child in leaf.children.values()]
        return self._next_level(view, min(children, key=likeliest_first)) if children else ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        tip = view.tree.tip
        if view.num_sent or self._next_level(view, tip) or any(n.busy for n in view.tree.live.values()):
            return ()
        nodes = sorted(unsent(view), key=likeliest_first)
        return nodes[: min(self._budget, view.credit_left)]

    def _next_level(self, view: GrowthView, root: Node) -> list[Node]:
        """Return the likeliest nodes of the first level that has not been drafted; none if the tree is
        complete."""
        levels = list(view.tree.subtree(root))
        drafted = [node.position for node in levels if node.evaluated or node.busy]
        level = max(drafted, default=root.position - 1) + 1
        if level >= root.position + self._depth:
            return []
        found = [node for node in levels if node.position == level and can_expand(view, node)]
        return sorted(found, key=likeliest_first)[: self._beam]


def best_sent_leaf(view: GrowthView) -> Node:
    """Return the likeliest node in flight that has no child in flight; the tip if there is none."""
    live = view.tree.live
    leaves = [
        node
        for node in view.tree.speculative()
        if node.wire_id and not any(live[child].wire_id for child in node.children.values())
    ]
    return min(leaves, key=likeliest_first, default=view.tree.tip)


def fan_outs(block: int, acceptance: float, budget: float, exponent: float) -> list[float]:
    """Return guesses F_0 ... F_block of the token after 0 ... block accepted, reals that sum to `budget`.

    F_k = F_0 a**(k / (1 + r)), and F_block larger by (1 - a)**(-1 / (1 + r)), where the miss rate falls as
    F**-r (arXiv 2603.03251). The acceptance counts as one within 0.01 and 0.99.
    """
    a, root = min(max(acceptance, 0.01), 0.99), 1.0 / (1.0 + exponent)
    shares = [a ** (place * root) for place in range(block + 1)]
    shares[block] *= (1.0 - a) ** -root
    return [budget * share / sum(shares) for share in shares]


class SaguaroPolicy:
    """Sends blocks, and caches the next block of each likely verdict (SSD / Saguaro, arXiv 2603.03251).

    While a block is in flight its likely ends (k accepted, another token) each get a block of their own, all
    drafted together. If the verdict is one of them its block goes out at once, else a new one is drafted.
    """

    name = "saguaro"
    fill = False

    def __init__(self, budget: int = 12, exponent: float = 1.0) -> None:
        self._budget = budget  # ends that are foreseen
        self._exponent = exponent  # r of `fan_outs`
        self._block = 1

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        place = self._place(view, node)
        fans = fan_outs(self._block, view.acceptance.ratio, self._budget, self._exponent)
        fan_out = round(fans[min(place, self._block)])
        return candidates[: max(1, fan_out)] if place >= self._block else candidates[: 1 + fan_out]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if not view.tree.num_speculative:
            self._block = delay_optimal_block(view)
        if view.num_sent:
            leaves = [node for node in self._cache_leaves(view) if can_expand(view, node)]
            return sorted(leaves, key=likeliest_first)[: 2 * self._budget]
        line = list(main_line(view, view.tree.tip))
        return line[-1:] if len(line) <= self._depth(view) and can_expand(view, line[-1]) else ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        block = list(main_line(view, view.tree.tip))[1:]
        if view.num_sent or len(block) < self._depth(view):
            return ()
        sent = block[: self._depth(view)]
        self._block = delay_optimal_block(view)  # of the blocks that are drafted in the meantime
        return sent

    def _cache_leaves(self, view: GrowthView) -> Iterator[Node]:
        """Yield the block's last node, then the end of every foreseen block that is not complete."""
        live = view.tree.live
        known = [node for node in live.values() if node.wire_id or node is view.tree.tip]
        for node in known:
            if not node.children:
                yield node
            for child in node.children.values():
                if not live[child].wire_id:
                    line = list(main_line(view, live[child]))
                    if len(line) <= self._block:
                        yield line[-1]

    def _place(self, view: GrowthView, node: Node) -> int:
        """Tokens of its block that come before what follows the node."""
        above, place = node, 0
        while above is not view.tree.tip and above.parent is not None:
            parent = view.tree.live[above.parent]
            if view.num_sent and not above.wire_id and (parent.wire_id or parent is view.tree.tip):
                break  # a foreseen end: its block begins here
            above, place = parent, place + 1
        return place

    def _depth(self, view: GrowthView) -> int:
        room = view.last_position - view.tree.tip_position
        return max(1, min(self._block, room, view.credit))


class ParkedPolicy:
    """Sends a chain and branches ahead and parks them at the verifier (our own; docs/schemes.md).

    A miss that a branch foresaw costs no round trip: the branch is already at the verifier.
    """

    name = "parked"
    fill = False

    def __init__(self, fan_out: int = 2, branch_depth: int = 3, width: int = 6, cut: float = 0.01) -> None:
        self._fan_out = fan_out  # branches at each position of the chain
        self._branch_depth = branch_depth  # tokens of a branch
        self._width = width  # nodes drafted in one step, the chain's included
        self._min_worth = math.log(cut)  # branches less likely than this, seen from the tip, are not begun

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        if off_line(view, node):
            return candidates[:1]
        least = self._min_worth - view.tree.worth(node)
        beside = [each for each in candidates[1 : 1 + self._fan_out] if each.logprob >= least]
        return [*candidates[:1], *beside]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= view.credit:
            return ()
        line = list(main_line(view, view.tree.tip))
        ahead = round_time(view, 0) / max(view.pace.rows.predict(1), 1e-4)
        on_line = [line[-1]] if len(line) <= max(1.0, ahead) and can_expand(view, line[-1]) else []
        beside = [node for node in expandable(view) if self._may_go_on(view, node)]
        beside.sort(key=likeliest_first)
        return on_line + beside[: self._width - len(on_line)]

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = sorted(unsent(view), key=likeliest_first)
        return nodes[: view.credit_left]

    def _may_go_on(self, view: GrowthView, node: Node) -> bool:
        return 0 < off_line(view, node) < self._branch_depth


def main_line(view: GrowthView, node: Node) -> Iterator[Node]:
    """Return the node, its first child, that child's first child and so on: the draft's best line."""
    yield node
    while node.children:
        node = view.tree.live[next(iter(node.children.values()))]
        yield node


def off_line(view: GrowthView, node: Node) -> int:
    """Count a branch's nodes down to this one; 0 if it lies on the tip's main line."""
    depth = count = 0
    while node is not view.tree.tip and node.parent is not None:
        depth += 1
        parent = view.tree.live[node.parent]
        if next(iter(parent.children.values())) != node.id:
            count = depth
        node = parent
    return count


def _ratio(time: float, unit: float) -> int:
    """Return how often `unit` fits into `time`, to the nearest whole; many times if it takes no time."""
    return round(min(time / unit, 1e6)) if unit > 0 else 10**6


POLICIES = (AmusdPolicy, PearlPolicy, PicoSpecPolicy, SpecEdgePolicy, SaguaroPolicy, ParkedPolicy)
HISTORICAL: dict[str, Callable[[], GrowthPolicy]] = {
    policy().name: policy for policy in (DelayOptimalPolicy, *POLICIES)
}
"""By the names that worlds and the command line use."""
