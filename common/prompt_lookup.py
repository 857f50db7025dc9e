"""Draft without a model, from places where the text's last tokens stood before.

`PromptLookup` looks into one session's prompt and text (prompt lookup, Saxena 2023; LLMA, arXiv 2304.04487),
into the target's choices on branches that died (ours), and into shared indexes: earlier texts
(SuffixDecoding, arXiv 2411.04975) and files (REST, arXiv 2311.08252). Each is a `SuffixIndex`. What followed
at the places of the longest match makes a tree with chances by count. Neither side needs a network or a model
for this, so verifier and device both do it.

The trust in each index is learnt at every committed token, by comparison with the guess for it, used or not.
If a text does not repeat itself, nothing is guessed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from common.estimators import RatioEstimator
from common.suffix_index import DEPTH, NO_MATCH, GrowingIndex, SuffixIndex
from common.tree import Node, SpeculationTree

WINDOW = 16_384
"""The last tokens of a prompt are remembered: some 130 KB and 10 ms. The text is remembered whole."""

LONGEST = 12
"""Tokens of a match by which trust differs: twelve say as much as a hundred."""

LOOKED_AT = 8  # places of a match, the newest if there are few

HALF_LIFE = 50.0  # guesses; a text begins and ends to repeat itself within tens of tokens
PRIOR_WEIGHT = 3.0  # guesses that the prior counts as: a text soon shows what it is like

LEAST = math.log(0.03)
"""Paths less likely than this are not guessed. What a row of a target step costs decides more sharply, but
lies between a thousandth of a step and a tenth."""

RECYCLED = 4096
"""Choices on dead branches that are remembered. Their use is soon over: the text has moved on."""

RECYCLED_AFTER = 8  # tokens before such a choice that are compared

SHARED_AT_ONCE = 128
"""Tokens of a text that go to the shared index together, because the texts of several sessions grow at the
same time."""


class Guess(NamedTuple):
    """A token that may follow another guess of the same list (`parent`, its index there), or the end (-1)."""

    parent: int
    token: int
    logprob: float  # nats, if those above it are right


def chain(tokens: Iterable[int], logprobs: Iterable[float]) -> list[Guess]:
    """Return guesses of which each follows the one before it."""
    return [Guess(above, *each) for above, each in enumerate(zip(tokens, logprobs, strict=True), start=-1)]


def copied(
    tokens: Sequence[int], length: int, trust: Callable[[int], float], least: float, surely: float
) -> list[Guess]:
    """Return the leading `tokens` that are likely enough, each below the one before it.

    Args: tokens, which follow a match of `length` tokens; trust, the chance of the next token by the length
    of the match, at most `LONGEST`; least and surely as of `PromptLookup.guess`.
    """
    guesses = list[Guess]()
    for token in tokens:
        logprob = log_chance(trust(length))
        least -= logprob
        if least > 0 or logprob < surely:
            break
        guesses.append(Guess(len(guesses) - 1, token, logprob))
        length = min(length + 1, LONGEST)
    return guesses


class Standing(IntEnum):
    """Says how a token stands among those that followed a match."""

    ALONE = 0  # the match has one place
    AGREED = 1  # the token followed at all of its places
    FIRST = 2  # at most of them
    OTHER = 3  # at fewer


class _Offer(NamedTuple):
    """A token that could be guessed next, with the rows in which it stands. The smaller is likelier; no two
    have the same parent and token."""

    unlikely: float  # nats: the log-chance of its path, negated
    parent: int  # its guess
    token: int
    logprob: float
    depth: int  # tokens of its path
    rows: Sequence[list[int]]


class TrustedIndex:
    """Guesses from an index, and learns how far to trust it by match length and agreement.

    Tokens that followed a match share its places by their counts. The trust in a token is the factor on this
    share that made such guesses right.
    """

    def __init__(self, index: SuffixIndex, *, is_own: bool = False) -> None:
        """`is_own`: the index ends with the text that is continued, so a copy may go on in itself."""
        self._index = index
        self._is_own = is_own
        self._known: tuple[int, list[list[int]]] | None = None  # length and rows after the present tail
        self._trust = [
            [RatioEstimator(_prior(length, standing), PRIOR_WEIGHT, HALF_LIFE) for standing in Standing]
            for length in range(LONGEST + 1)
        ]

    def learn(self, tail: Sequence[int], token: int) -> None:
        """Compare the guess after `tail` with the token that the target wrote."""
        length, rows = self._known or self._look(tail, (), 1)
        self._known = None
        if rows:
            (first, firsts), *others = _followers(rows, 0)
            trust, share = self._trust[length], len(firsts) / len(rows)
            trust[_standing(len(firsts), len(rows))].add(float(first == token), share)
            if others:
                trust[Standing.OTHER].add(float(token in dict(others)), 1.0 - share)

    def guess(
        self, tail: Sequence[int], path: Sequence[int], most: int, least: float, surely: float
    ) -> list[Guess]:
        """Return a tree of up to `most` tokens after `tail` and `path`, the likeliest first.

        Args as of `PromptLookup.guess`.
        """
        length, rows = self._look([*tail, *path], path, most)
        if not path:
            self._known = length, rows
        if len(rows) == 1:
            return copied(rows[0], length, self._trust_alone, least, surely)
        guesses, heap = list[Guess](), self._offers(_Offer(0.0, -1, 0, 0.0, 0, rows), -1, length)
        heapq.heapify(heap)
        while heap and len(guesses) < most:
            best = heapq.heappop(heap)
            if best.logprob < surely or best.unlikely > -least:
                continue
            guesses.append(Guess(best.parent, best.token, best.logprob))
            for offer in self._offers(best, len(guesses) - 1, length):
                heapq.heappush(heap, offer)
        return guesses

    def _offers(self, above: _Offer, parent: int, length: int) -> list[_Offer]:
        """Return the tokens that may follow `above`, which became guess number `parent`."""
        trust, offers = self._trust[min(length + above.depth, LONGEST)], list[_Offer]()
        followers = _followers(above.rows, above.depth)
        total = sum(len(rows) for _, rows in followers)
        for token, rows in followers:
            standing = Standing.OTHER if offers else _standing(len(rows), total)
            logprob = log_chance(trust[standing].ratio * len(rows) / total)
            offers.append(_Offer(above.unlikely - logprob, parent, token, logprob, above.depth + 1, rows))
        return offers

    def _trust_alone(self, length: int) -> float:
        """Return the trust in a token after the only place of a match."""
        return self._trust[length][Standing.ALONE].ratio

    def _look(self, tail: Sequence[int], path: Sequence[int], most: int) -> tuple[int, list[list[int]]]:
        """Return the length of the longest match of the end of `tail`, and up to `most` tokens after each of
        its places, of which none is empty."""
        index = self._index
        match = index.find(tail) if len(index) else NO_MATCH
        rows = list[list[int]]()
        for place in index.places(match, LOOKED_AT):
            row = index.tokens(place, most)
            if self._is_own and len(row) < most:  # a copy goes on in itself, as in LZ77
                row += path
                row = (row * -(-most // len(row)))[:most]
            if row:
                rows.append(row)
        return min(match.length, LONGEST), rows


@dataclass(frozen=True, slots=True)
class SharedTexts:
    """Texts that several sessions look up in: `written` ones, which grow, and `files`."""

    written: GrowingIndex | None = None
    files: Sequence[SuffixIndex] = ()


NO_TEXTS = SharedTexts()


class PromptLookup:
    """The lookup remembers one session's text and what else is known, and learns how far to trust that.

    Driven by `append` for every committed token and, on the verifier, `recycle` after each step; `guess` in
    between changes nothing. `close` ends it. Args: prompt, token ids; shared, other texts.
    """

    def __init__(self, prompt: Sequence[int], shared: SharedTexts = NO_TEXTS) -> None:
        self._own, self._shared = GrowingIndex(prompt[-WINDOW:]), shared.written
        self._recycled = GrowingIndex(capacity=RECYCLED)
        self._tail = list(prompt[-DEPTH:])
        self._unshared = list[int]()  # the newest tokens, not in `shared` yet
        self._unshared_after = self._tail  # the tokens before them
        others = (self._recycled, shared.written, *shared.files)
        self._indexes = [TrustedIndex(each) for each in others if each is not None]
        self._indexes.insert(0, TrustedIndex(self._own, is_own=True))

    def append(self, token: int) -> None:
        """Learn from the token that the target wrote how far to trust this memory, and remember it."""
        for index in self._indexes:
            index.learn(self._tail, token)
        self._own.append(token)
        self._tail = [*self._tail[1 - DEPTH :], token]
        if self._shared is not None:
            self._unshared.append(token)
            if len(self._unshared) >= SHARED_AT_ONCE:
                self.close()

    def recycle(self, nodes: Sequence[Node], committed: Sequence[int]) -> None:
        """Remember the target's choices at evaluated nodes that did not become text.

        Args: nodes, of a step, parents before children; committed, the text's tokens, the step's included.
        """
        paths = dict[int | None, Sequence[int]]()  # by node: the last tokens of its path
        for node in nodes:
            if node.committed:
                end = node.position + 1
                paths[node.id] = committed[max(0, end - RECYCLED_AFTER) : end]
            elif node.choice is not None:
                paths[node.id] = path = [*paths[node.parent], node.token][-RECYCLED_AFTER:]
                self._recycled.separate(path)
                self._recycled.append(node.choice)

    def guess(
        self, most: int, path: Sequence[int] = (), least: float = LEAST, surely: float = LEAST
    ) -> list[Guess]:
        """Return what may follow the text and `path`, the likeliest first.

        Args: most, tokens from each index; path, token ids not committed yet; least, nats, of each path;
        surely, nats, of each token if those above it are right.
        """
        trees = [index.guess(self._tail, path, most, least, surely) for index in self._indexes]
        return merge([tree for tree in trees if tree])

    def close(self) -> None:
        """Let other sessions find the text so far among the shared ones."""
        if self._shared is not None and self._unshared:
            self._shared.separate(self._unshared_after)
            self._shared.extend(self._unshared)
            self._unshared, self._unshared_after = [], self._tail


def _followers(rows: Sequence[list[int]], depth: int) -> list[tuple[int, list[list[int]]]]:
    """Return the tokens at `depth`, each with its rows: the most frequent first, of equals the newest. Rows
    that end before are left out."""
    followers = dict[int, list[list[int]]]()
    for row in rows:
        if len(row) > depth:
            followers.setdefault(row[depth], []).append(row)
    return sorted(followers.items(), key=_num_rows, reverse=True)


def _num_rows(follower: tuple[int, list[list[int]]]) -> int:
    return len(follower[1])


def _standing(num_rows: int, total: int) -> Standing:
    """Return the standing of the most frequent token, which stands in `num_rows` of `total` rows."""
    if num_rows < total:
        return Standing.FIRST
    return Standing.AGREED if total > 1 else Standing.ALONE


def merge(trees: Sequence[list[Guess]]) -> list[Guess]:
    """Return the guesses of all trees, the likeliest first."""
    if len(trees) < 2:
        return trees[0] if trees else []
    merged = list[tuple[float, int, Guess]]()  # each with the log-chance of its path and its place here
    for tree in trees:
        first = len(merged)
        for guess in tree:
            above = first + guess.parent if guess.parent >= 0 else -1
            worth = guess.logprob + (merged[above][0] if above >= 0 else 0.0)
            merged.append((worth, len(merged), guess._replace(parent=above)))
    merged.sort(key=lambda each: (-each[0], each[1]))  # a child is less likely than its parent
    place = {before: now for now, (_, before, _) in enumerate(merged)} | {-1: -1}
    return [guess._replace(parent=place[guess.parent]) for _, _, guess in merged]


def grow_guesses(
    tree: SpeculationTree,
    guess: Callable[[int, Sequence[int], float, float], list[Guess]],
    last_position: int,
    most: int,
    surely: float = LEAST,
    *,
    from_tip: bool = True,
) -> None:
    """Attach guesses below the tip, if `from_tip`, and below the end of the likeliest path.

    Args: guess, as `PromptLookup.guess`; last_position, of the text, where a guess would save no step; most,
    new nodes; surely, the least log-probability (nats) of each new node if its parents are right.
    """
    limit = tree.num_speculative + most
    path = tree.likeliest_path()
    for start in dict.fromkeys((0, len(path)) if from_tip else (len(path),)):
        node = path[start - 1] if start else tree.tip
        room = min(most, last_position - 1 - node.position)
        if room < 1:
            continue
        tokens = [above.token for above in path[:start]]
        guesses = guess(room, tokens, LEAST - tree.worth(node), surely)
        if len(grow_below(tree, node, guesses, limit, last_position)) < len(guesses):
            return


def grow_below(
    tree: SpeculationTree, above: Node, guesses: Sequence[Guess], most: int, last: int
) -> list[Node]:
    """Grow guesses below a node, as far as the tree has fewer than `most` nodes below its tip and they stand
    before `last`, the text's last position. Return their nodes."""
    grown = list[Node]()
    for parent, token, logprob in guesses:
        node = grown[parent] if parent >= 0 else above
        is_new = token not in node.children
        if node.position + 1 >= last or (is_new and tree.num_speculative >= most):
            break
        grown.append(tree.grow(node, token, logprob))
    return grown


def _prior(length: int, standing: Standing) -> float:
    """Return the prior of the trust in a token. It is modest, where texts do repeat themselves: in source
    code a token that followed once follows again in 0.5 of all cases after two tokens, and 0.9 after
    twelve."""
    alone = 0.2 + 0.055 * length
    return (alone, 0.5 * (1.0 + alone), 0.6, 0.4)[standing]


def log_chance(chance: float) -> float:
    """Return the logarithm of a chance (nats), bounded away from 0 and 1."""
    return math.log(min(max(chance, 1e-4), 0.99))
