"""The index finds what a search of every place finds, however it was built and whatever it has forgotten."""

import random
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

import common.suffix_index
from common.suffix_index import DEPTH, FIRST, GAP, NO_MATCH, GrowingIndex, SuffixIndex, sort_places

ALL = 10**9


def naive(texts: Sequence[Sequence[int]], tail: Sequence[int], first: int = 0) -> tuple[int, list[int]]:
    """The length of the longest match, and its places in the index, the newest first. Places of the first
    text before `first` do not count."""
    best, places, place = 0, list[int](), FIRST
    for text in texts:
        place += first
        for at in range(first, len(text)):
            length = 0
            while length < min(at, len(tail), DEPTH) and text[at - 1 - length] == tail[-1 - length]:
                length += 1
            if length > best:
                best, places = length, []
            if length == best:
                places.append(place)
            place += 1
        place, first = place + 1, 0  # the gap
    return best, places[::-1] if best else []


def grown(texts: Sequence[Sequence[int]], draw: random.Random) -> GrowingIndex:
    """The texts, added token by token, piece by piece or all at once."""
    index = GrowingIndex()
    for text in texts:
        cut = draw.randint(0, len(text))
        index.extend(text[:cut])
        for token in text[cut:]:
            index.append(token)
        index.separate()
    return index


def frozen(index: GrowingIndex) -> SuffixIndex:
    text = bytes(index._text)
    tokens = np.frombuffer(text, np.int32)
    places = np.flatnonzero(tokens != GAP)
    return SuffixIndex(text, sort_places(text, places[places >= FIRST]))


def case(draw: random.Random) -> tuple[list[list[int]], list[int]]:
    """Some texts of few kinds of tokens, and a tail that is an end of one or none of them."""
    kinds = draw.choice([1, 2, 3, 8, 300])
    texts = [draw.choices(range(kinds), k=draw.randint(0, 40)) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.2:
        texts[0] += texts[-1] + texts[0]
    tail = list(draw.choice(texts)) if draw.random() < 0.5 else draw.choices(range(kinds), k=40)
    tail = tail[: draw.randint(0, len(tail))]
    return texts, [*tail[-draw.randint(1, 60) :], *draw.choices(range(kinds), k=draw.randint(0, 2))]


def check(seed: int, num_cases: int) -> None:
    draw, texts, indexes = random.Random(seed), list[list[int]](), tuple[SuffixIndex, ...]()
    for number in range(num_cases):
        if not number % 5:  # of each five cases, four differ in the tail alone
            texts, tail = case(draw)
            index = grown(texts, draw)
            indexes = (index, frozen(index))
        else:
            tail = case(draw)[1]
        expected = naive(texts, tail)
        for each in indexes:
            match = each.find(tail)
            assert (match.length, each.places(match, ALL)) == expected, (seed, number)
            assert match.num_places == len(expected[1])


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 12, 10**6])
def test_a_look_up_equals_a_naive_search(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.suffix_index, "SORTED_AT_ONCE", at_once)
    check(at_once, 3_400)


def test_an_index_without_a_match_returns_none() -> None:
    assert GrowingIndex().find((1, 2)) == NO_MATCH
    assert GrowingIndex((1, 2, 3)).find(()) == NO_MATCH
    assert GrowingIndex((1, 2, 3)).find((3,)) == NO_MATCH, "nothing followed it yet"
    assert frozen(GrowingIndex()).find((1, 2, 3)) == NO_MATCH


def test_tokens_end_where_their_text_ends() -> None:
    index = GrowingIndex((1, 2, 3))
    index.separate((8, 9))
    index.extend((4, 5))
    assert index.tokens(FIRST, 9) == [1, 2, 3]
    assert index.tokens(FIRST, 2) == [1, 2]
    match = index.find((7, 8, 9))
    assert (match.length, match.num_places) == (2, 1), "the context of a text is compared"
    assert [index.tokens(place, 9) for place in index.places(match, 1)] == [[4, 5]]
    assert index.find((8,)) == NO_MATCH, "and never proposed"


def test_places_are_a_sample_of_the_whole_range() -> None:
    index = GrowingIndex([7, 1, 8, 1, 9, 1] * 30)
    match = index.find((1,))
    assert match.num_places == 89
    few = index.places(match, 8)
    assert len(few) == 8
    assert {token for place in few for token in index.tokens(place, 1)} == {7, 8, 9}


@pytest.mark.parametrize("piece", [1, 40, 700])
def test_an_index_forgets_the_oldest_places_and_stays_right(piece: int) -> None:
    draw = random.Random(piece)
    tokens = draw.choices(range(3), k=4_000)
    index = GrowingIndex(capacity=400)
    for start in range(0, len(tokens), piece):
        index.extend(tokens[start : start + piece])
        num_added, kept = min(start + piece, len(tokens)), len(index)
        assert min(num_added, 400) <= kept <= 450
        if draw.random() < 20 * piece / len(tokens):
            tail = draw.choices(range(3), k=40)
            recent = tokens[max(0, num_added - kept - DEPTH) : num_added]
            length, places = naive([recent], tail, max(0, len(recent) - kept))
            match = index.find(tail)
            shift = index.size - FIRST - len(recent)
            assert (match.length, index.places(match, ALL)) == (length, [at + shift for at in places])
    assert index.size <= 450 + FIRST


def test_a_copy_is_the_same_and_grows_apart() -> None:
    first = GrowingIndex(random.Random(3).choices(range(4), k=300))
    first.separate((1, 2))
    first.extend((3, 3))
    text, order = first.snapshot()
    for source in (first, SuffixIndex(text, array("i", order))):
        copy = GrowingIndex.copy_of(source)
        assert copy.snapshot() == (text, order)
        copy.separate()
        copy.extend((2, 3, 3))
        assert copy.find((2, 3)).num_places > first.find((2, 3)).num_places
        assert first.snapshot() == (text, order)
        assert len(GrowingIndex.copy_of(source, capacity=100)) == 100, "the newest"
