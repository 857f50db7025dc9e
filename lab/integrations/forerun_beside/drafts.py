"""Carry the live nodes of a session into the engine's process, and cut from them what a step can still use.

The whole tree travels each time, so a lost or late message costs speed and never a text. The engine alone
decides; drafts only say what it evaluates beside the next token. Standard library and numpy only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.tree import SpeculationTree

TAIL = 256
"""Newest tokens of a text that can lie among the drafts of its session: twice the live nodes of one."""

KEY_CHARS = 16  # of a session's key, hexadecimal digits

_NAME = re.compile(rf"forerun-([0-9a-f]{{{KEY_CHARS}}})")


def name_of(key: str) -> str:
    """Return the request id of the session `key`."""
    return f"forerun-{key}"


def key_in(request_id: str) -> str | None:
    """Return the key of the session whose name the id contains; None for a request of somebody else.

    Engines put words of their own around the id that a caller gives.
    """
    match = _NAME.search(request_id)
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Holds the nodes below one position of a text: a tree, parents before children."""

    position: int  # of the tip, the last token above the nodes, counted from the prompt's first token
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # index of each node's parent, below its own; -1: the tip
    chances: tuple[float, ...] = ()  # log-probability of each node if its parent is right, nats

    @classmethod
    def of(cls, tree: SpeculationTree) -> DraftTree:
        """Take the live nodes of a session's tree."""
        nodes = list(tree.speculative())
        place = {tree.tip.id: -1, **{node.id: at for at, node in enumerate(nodes)}}
        return cls(
            tree.tip_position,
            tuple(node.token for node in nodes),
            tuple(place[node.parent] for node in nodes if node.parent is not None),
            tuple(node.logprob for node in nodes),
        )

    def after(self, text: Sequence[int]) -> DraftTree:
        """Return the nodes that remain when `text` follows the tip: those below its last token."""
        here, position = -1, self.position + len(text)
        for token in text:
            ways = zip(self.tokens, self.parents, strict=True)
            below = [at for at, way in enumerate(ways) if way == (token, here)]
            if not below:
                return DraftTree(position)
            here = below[0]
        return self._part(position, here, range(len(self.tokens)))

    def best(self, count: int) -> DraftTree:
        """Return at most `count` nodes, those that are most likely reached."""
        reach = list[float]()
        for parent, chance in zip(self.parents, self.chances, strict=True):
            reach.append(chance + (reach[parent] if parent >= 0 else 0.0))
        # A child is never likelier than its parent, and sorting keeps the order of equals.
        ranked = sorted(range(len(reach)), key=lambda at: -reach[at])
        return self._part(self.position, -1, sorted(ranked[:count]))

    def chain(self, count: int) -> list[int]:
        """Return at most `count` tokens from the tip on, always to the likeliest child."""
        tokens, here = list[int](), -1
        while len(tokens) < count:
            below = [at for at, parent in enumerate(self.parents) if parent == here]
            if not below:
                break
            here = max(below, key=self.chances.__getitem__)
            tokens.append(self.tokens[here])
        return tokens

    def rows(self, tip: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return tokens [count] and mask [count, count] of the tip and the best nodes; `mask[i, j]`: row j is
        above row i, or i itself. Rows that are left over repeat the tip's token below the tip."""
        tree = self.best(count - 1)
        tokens = np.full(count, tip, np.int64)
        mask = np.eye(count, dtype=np.bool_)
        mask[:, 0] = True
        for row, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True), start=1):
            tokens[row] = token
            mask[row] |= mask[parent + 1]
        return tokens, mask

    def encode(self) -> bytes:
        """Encode the nodes; empty bytes without any."""
        chances = [round(chance, 3) for chance in self.chances]
        told = self.position, self.tokens, self.parents, chances
        return json.dumps(told).encode() if self.tokens else b""

    @classmethod
    def decode(cls, data: bytes) -> DraftTree:
        """Return the nodes. Raises `ValueError` for bytes that are none."""
        try:
            position, *lists = json.loads(data)
            tokens, parents, chances = (tuple(each) for each in lists)
            whole = all(type(each) is int for each in (position, *tokens, *parents))
            known = all(-1 <= parent < at for at, parent in enumerate(parents))
            fits = len(tokens) == len(parents) == len(chances) and all(-math.inf < x <= 0 for x in chances)
        except TypeError as error:
            raise ValueError(f"these are no drafts: {error}") from error
        if not (whole and known and fits and min(tokens, default=0) >= 0):
            raise ValueError("these are no drafts: a list is not what it must be")
        return cls(position, tokens, parents, chances)

    def _part(self, position: int, root: int, kept: Sequence[int]) -> DraftTree:
        """Return those of the `kept` nodes, parents first, that hang below the node `root`."""
        place, nodes = {root: -1}, list[int]()
        for at in kept:
            if at != root and self.parents[at] in place:
                place[at] = len(nodes)
                nodes.append(at)
        return DraftTree(
            position,
            tuple(self.tokens[at] for at in nodes),
            tuple(place[self.parents[at]] for at in nodes),
            tuple(self.chances[at] for at in nodes),
        )
