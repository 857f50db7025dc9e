"""Rounds of a block: the base of policies that stop one early, and what a round takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from common.tree import Node
from edge_client.core.policies.base import GrowthView, unsent
from edge_client.core.policies.plain import SyncPolicy

MAX_BLOCK = 24
"""Longest block that a rule may ask for; at acceptance 0.9 one more gains less than 0.1 token."""


class StoppingPolicy(SyncPolicy):
    """Drafts a block per round trip, at most `block` tokens. Subclasses end it early in `branch` or `expand`.

    `expand` must have no side effect: it is also asked whether a block goes on.
    """

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = unsent(view)
        if view.num_sent or (nodes and nodes[-1].busy) or self.expand(view):
            return ()
        return nodes[: view.credit_left]


def round_time(view: GrowthView, block: int) -> float:
    """Return the seconds of a synchronous round of `block` drafted tokens, by the view's measurements."""
    steps = view.pace.rows.predict(1) * block + view.step_time.predict(block + 1)
    return steps + view.rtt.smoothed_rtt


def tokens_per_round(block: int, acceptance: float) -> float:
    """Return a block's mean number of tokens: 1 + a + ... + a**block (Leviathan 2023, eq. 1)."""
    return sum(acceptance**place for place in range(block + 1))


def whole_ratio(time: float, unit: float) -> int:
    """Return how often `unit` fits into `time`, to the nearest whole; many times if it takes no time."""
    return round(min(time / unit, 1e6)) if unit > 0 else 10**6


def num_within(time: float, unit: float) -> int:
    """Return how many whole `unit`s fit into `time`. A measured ratio wavers, so 2 % below a whole number
    count as that number."""
    return math.floor(min(time / unit, 1e6) + 0.02) if unit > 0 else 10**6


def main_line(view: GrowthView, node: Node) -> Iterator[Node]:
    """Return the node, its first child, that child's first child and so on: the draft's best line."""
    yield node
    while node.children:
        node = view.tree.live[next(iter(node.children.values()))]
        yield node


def likeliest_first(node: Node) -> tuple[float, int]:
    """Return the sort key. A parent is never less likely than its child and has the smaller id."""
    return (-node.path_logprob, node.id)
