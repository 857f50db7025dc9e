"""Index texts by what stands before each place, to find where the end of a text stood before.

A *place* is the position of a token. All places are sorted by the tokens before them, the nearest first: a
suffix array of the reversed text. So one binary search finds the longest match of a text's end, and all its
places lie side by side. SuffixDecoding (arXiv 2411.04975) keeps the same counts in suffix trees, REST (arXiv
2311.08252) in a suffix array; this array has four bytes a token beside the token itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DEPTH = 32
"""Tokens before a place that are compared. Places that agree in all of them stand in order of age, the
newest first."""

GAP = -1
"""Stands between two texts. No token has this id, so no match crosses it."""

UNIT = 4  # bytes of a token, an int32 in little-endian order

FIRST = DEPTH + 1
"""The place of the first token. Gaps stand before it, so that every place has `DEPTH` tokens before it."""

START = np.full(FIRST, GAP, np.int32).tobytes()
"""The gaps before the first token."""

SORTED_AT_ONCE = 256
"""Tokens from which sorting all of them is faster than inserting one after the other."""


class Match(NamedTuple):
    """The longest match of a text's end: its tokens, and the range of its places in the order. Without a
    match the length is 0 and the range is empty."""

    length: int
    first: int
    end: int

    @property
    def num_places(self) -> int:
        """The number of places at which the same tokens stood before."""
        return self.end - self.first


NO_MATCH = Match(0, 0, 0)


class SuffixIndex:
    """Finds the end of a text in indexed texts, which do not change (`GrowingIndex`: which grow).

    Args: text, the tokens as bytes, `START` first; order, of its places (`sort_places`).
    """

    def __init__(self, text: bytes | bytearray, order: array[int]) -> None:
        self._text, self._order = text, order
        self._context = _contexts(text, DEPTH)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def size(self) -> int:
        """The number of tokens, gaps and start included: the place after the last token."""
        return len(self._text) // UNIT

    def find(self, tail: Sequence[int]) -> Match:
        """Return the longest match of the end of `tail`, of `DEPTH` tokens at most, without gaps."""
        order, context, length = self._order, self._context, 0
        key = _as_key(tail[-DEPTH:])
        at = bisect_left(order, key, key=context)
        for neighbour in (at - 1, at):  # the longest match is beside the place where the key would stand
            if 0 <= neighbour < len(order):
                length = max(length, _num_equal(context(order[neighbour]), key))
        if not length:
            return NO_MATCH
        key = key[: UNIT * length]
        return Match(length, *self._range(key[: UNIT * length], at))

    def places(self, match: Match, most: int) -> list[int]:
        """Return the match's places, the newest first; if there are more than `most`, some of them, evenly
        spread over what stood before."""
        step = max(1, -(-match.num_places // most))
        return sorted((self._order[at] for at in range(match.first, match.end, step)), reverse=True)

    def tokens(self, place: int, count: int) -> list[int]:
        """Return up to `count` tokens from `place` on, fewer where the index or a text ends."""
        followers = array("i", self._text[UNIT * place : UNIT * (place + count)]).tolist()
        return followers[: followers.index(GAP)] if GAP in followers else followers

    def _range(self, key: bytes, at: int) -> tuple[int, int]:
        """Return the range of the places whose context begins with `key`, which lie around `at`. Most are
        few, so the search doubles its steps from there on."""
        order, begin = self._order, _contexts(self._text, len(key) // UNIT)
        width = 1
        while width <= at and begin(order[at - width]) == key:
            width *= 2
        first = bisect_left(order, key, max(0, at - width), at - width // 2, key=begin)
        width = 1
        while at + width <= len(order) and begin(order[at + width - 1]) == key:
            width *= 2
        end = bisect_right(order, key, at + width // 2, min(len(order), at + width - 1), key=begin)
        return first, end


class GrowingIndex(SuffixIndex):
    """Finds the end of a text in texts that grow, at a cost that rises slowly with their size.

    Args: capacity, places; beyond it the oldest are forgotten, an eighth at a time; 0 for no bound.
    """

    _text: bytearray

    def __init__(self, tokens: Sequence[int] = (), capacity: int = 0) -> None:
        super().__init__(bytearray(START), array("i"))
        self._capacity = capacity
        self.extend(tokens)

    @classmethod
    def copy_of(cls, index: SuffixIndex, capacity: int = 0) -> GrowingIndex:
        """Return an index of the same texts that can grow."""
        copy = cls(capacity=capacity)
        copy._text[:] = index._text
        copy._order = index._order[:]
        copy._forget()
        return copy

    def snapshot(self) -> tuple[bytes, bytes]:
        """Return text and order as bytes, which do not change with the index."""
        return bytes(self._text), self._order.tobytes()

    def append(self, token: int) -> None:
        """Add the token that follows the last one."""
        place = self.size
        at = bisect_left(self._order, self._context(place), key=self._context)
        self._order.insert(at, place)
        self._text += token.to_bytes(UNIT, "little")
        self._forget()

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens that follow the last one."""
        if len(tokens) < SORTED_AT_ONCE:
            for token in tokens:
                self.append(token)
            return
        first = self.size
        self._text += np.array(tokens, np.int32).tobytes()
        known = np.sort(np.array(self._order, np.int32))
        self._order = sort_places(self._text, np.r_[known, first : self.size])
        self._forget()

    def separate(self, context: Sequence[int] = ()) -> None:
        """End the text. The next one follows `context`, tokens that are compared and never proposed."""
        self._text += np.array((GAP, *context), np.int32).tobytes()

    def _forget(self) -> None:
        """Drop the oldest places. The tokens before the oldest one left stay, as they are compared."""
        if not self._capacity or len(self._order) <= self._capacity * 9 // 8:
            return
        order = np.array(self._order)
        oldest = np.partition(order, -self._capacity)[-self._capacity]
        dropped = int(oldest) - FIRST
        self._order = array("i", (order[order >= oldest] - dropped).astype(np.int32).tobytes())
        del self._text[: UNIT * dropped]


def _contexts(text: bytes | bytearray, depth: int) -> Callable[[int], Any]:
    """Return the function that gives the `depth` tokens before a place, reversed, in bytes that compare as
    the tokens do."""
    size = UNIT * depth

    def context(place: int) -> Any:
        last = 4 * place - 1
        return text[last : last - size : -1]

    return context


def _as_key(tail: Sequence[int]) -> bytes:
    """Return tokens as `SuffixIndex` compares them: the last first, each with its highest byte first."""
    return array("i", tail).tobytes()[::-1]


def _num_equal(context: bytes | bytearray, key: bytes) -> int:
    """Return how many tokens of `key` agree with the context, from the nearest on."""
    difference = int.from_bytes(context[: len(key)], "big") ^ int.from_bytes(key, "big")
    return (len(key) - (difference.bit_length() + 7) // 8) // UNIT


def sort_places(text: bytes | bytearray, places: npt.NDArray[np.integer]) -> array[int]:
    """Return ascending `places` of a text, `START` first, in the order of an index. Takes 128 bytes a place
    meanwhile."""
    backward = np.frombuffer(text, np.int32)[::-1].astype(">i4")
    contexts = np.lib.stride_tricks.sliding_window_view(backward, DEPTH)[len(backward) - places[::-1]]
    keys = np.ascontiguousarray(contexts).view(f"V{UNIT * DEPTH}").ravel()  # compared byte by byte
    newest_first = places[::-1][np.argsort(keys, kind="stable")]
    return array("i", newest_first.astype(np.int32).tobytes())
