"""Cacheback (arXiv 2511.21699): drafts from nothing but tables of n-grams, whose least recently used go."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TypeVar

from common.prompt_lookup import LEAST, WINDOW, SharedTexts, chain, grow_below
from common.suffix_index import DEPTH, FIRST, GrowingIndex
from common.tree import Node, SpeculationTree
from edge_client.core.policies.base import GrowthPolicy, GrowthView, Offered, check_counts, unsent
from edge_client.core.proposal_source import ProposalSource

Tokens = tuple[int, ...]
Kept = TypeVar("Kept")

MOST_LEADERS = 16_384  # of a table: a long prompt and its text

PROMISE = math.log(0.5)  # nats, of each token; a round sends all nodes, so nothing depends on it


class FollowerTable:
    """Maps each leader, `leader` tokens in a row, to the rows of `follower` tokens that followed it in texts.

    Both are kept in the order of their last use. Beyond `most_leaders`, and beyond `most_followers` of one
    leader, the least recently used go.
    """

    def __init__(self, leader: int, follower: int, most_leaders: int, most_followers: int) -> None:
        self.leader, self.length = leader, leader + follower
        self._most_leaders, self._most_followers = most_leaders, most_followers
        self._followers = OrderedDict[Tokens, OrderedDict[Tokens, None]]()

    def read(self, tokens: Sequence[int]) -> None:
        """Use all leaders of a text with what follows them, in order."""
        for end in range(self.length, len(tokens) + 1):
            row = tuple(tokens[end - self.length : end])
            leader, follower = row[: self.leader], row[self.leader :]
            followers = self._followers.setdefault(leader, OrderedDict())
            followers[follower] = None
            _use(self._followers, leader, self._most_leaders)
            _use(followers, follower, self._most_followers)

    def after(self, tail: Sequence[int]) -> list[Tokens]:
        """Return the followers of the leader that ends `tail`, the latest first."""
        return list(reversed(self._followers.get(tuple(tail[-self.leader :]), {})))


def _use(table: OrderedDict[Tokens, Kept], key: Tokens, most: int) -> None:
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)


class NgramTrees(ProposalSource):
    """Grows a tree of followers: those of the text's end, then those of each row's end, breadth first.

    The dynamic table has the session's prompt and text, the frozen one earlier texts.
    """

    copies = True

    def __init__(
        self,
        dynamic: FollowerTable,
        frozen: FollowerTable,
        text: Sequence[int],
        most: int,
        written: GrowingIndex | None = None,
    ) -> None:
        """Args: text, the session's so far; most, nodes of a tree; written, the index that takes the text."""
        self._dynamic, self._frozen, self._most, self._written = dynamic, frozen, most, written
        self._before, self._unshared = text[-DEPTH:], list[int]()
        self._tail = list(text[-dynamic.length :])
        dynamic.read(text[-WINDOW:])

    def followers(self, tail: Sequence[int]) -> list[Tokens]:
        """Return the rows that may follow `tail`, the latest of the dynamic table first."""
        return list(dict.fromkeys((*self._dynamic.after(tail), *self._frozen.after(tail))))

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        """Grow a whole tree below the tip, where there is none."""
        if not from_tip or tree.num_speculative:
            return
        most, ends = min(self._most, room), deque([(tree.tip, tuple(self._tail))])
        while ends:
            node, tail = ends.popleft()
            for follower in self.followers(tail):
                grown = grow_below(tree, node, chain(follower, [PROMISE] * len(follower)), most, last)
                if len(grown) == len(follower):
                    ends.append((grown[-1], (*tail, *follower)[-len(tail) :]))
                elif tree.num_speculative >= most:
                    return

    def learn(self, node: int, token: int) -> None:
        self._tail = [*self._tail, token][-self._dynamic.length :]
        self._dynamic.read(self._tail)
        self._unshared.append(token)

    def close(self) -> None:
        if self._written is not None and self._unshared:
            self._written.separate(self._before)
            self._written.extend(self._unshared)
            self._before, self._unshared = [*self._before, *self._unshared][-DEPTH:], []


class CachebackPolicy(GrowthPolicy):
    """Sends a tree of n-grams a round, without fill and without the draft model."""

    name = "cacheback"
    fill = False

    def __init__(self, leader: int = 1, follower: int = 4, followers: int = 8, nodes: int = 24) -> None:
        """Args: leader and follower, tokens of each; followers, the most of a leader; nodes, of a tree."""
        check_counts(leader=leader, follower=follower, followers=followers, nodes=nodes)
        self._sizes, self._nodes = (leader, follower, MOST_LEADERS, followers), nodes

    def sources(self, text: Sequence[int], shared: SharedTexts, recall: bool) -> Sequence[ProposalSource]:
        """Return the tables of a session that begins with `text`. The frozen one has the end of earlier
        texts."""
        frozen = FollowerTable(*self._sizes)
        if shared.written is not None:
            place, end = max(FIRST, shared.written.size - WINDOW), shared.written.size
            while place < end:
                tokens = shared.written.tokens(place, end - place)
                frozen.read(tokens)
                place += len(tokens) + 1  # over the gap between two texts
        return (NgramTrees(FollowerTable(*self._sizes), frozen, text, self._nodes, shared.written),)

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        return ()

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        return () if view.num_sent else unsent(view)[: view.credit_left]
