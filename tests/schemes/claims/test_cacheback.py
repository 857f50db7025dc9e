"""The tables of Cacheback hold what was used last, and its trees what the tables hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from common.prompt_lookup import NO_TEXTS, SharedTexts
from common.suffix_index import GrowingIndex
from common.tree import SpeculationTree
from schemes.policies.cacheback import CachebackPolicy, FollowerTable, NgramTrees, Tokens

LEADER, FOLLOWER = 2, 3


def expected(text: Sequence[int], most_leaders: int, most_followers: int) -> dict[Tokens, list[Tokens]]:
    """The table's content, told from all uses at once: a leader is there from its last return on, which is
    the first use after `most_leaders` others were used in between."""
    ends = range(LEADER, len(text) - FOLLOWER + 1)
    uses = [(tuple(text[at - LEADER : at]), tuple(text[at : at + FOLLOWER])) for at in ends]
    content = dict[Tokens, list[Tokens]]()
    for leader in {leader for leader, _ in uses}:
        places = [place for place, use in enumerate(uses) if use[0] == leader]
        ends_at = [*places[1:], len(uses)]
        others = [
            {use[0] for use in uses[place + 1 : end]} for place, end in zip(places, ends_at, strict=True)
        ]
        kept = list[Tokens]()
        for place, between in zip(places, others, strict=True):
            kept.append(uses[place][1])
            if len(between) >= most_leaders:
                kept.clear()
        content[leader] = list(dict.fromkeys(reversed(kept)))[:most_followers]
    return {leader: rows for leader, rows in content.items() if rows}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most_leaders", [3, 8, 1000])
@pytest.mark.parametrize("most_followers", [1, 2, 4])
def test_a_table_has_the_leaders_and_followers_that_were_used_last(
    seed: int, most_leaders: int, most_followers: int
) -> None:
    draw = random.Random(seed)
    text = [draw.randrange(4) for _ in range(150)]
    table = FollowerTable(LEADER, FOLLOWER, most_leaders, most_followers)
    for end in range(len(text)):  # as a text that grows
        table.read(text[max(0, end + 1 - LEADER - FOLLOWER) : end + 1])
    whole = FollowerTable(LEADER, FOLLOWER, most_leaders, most_followers)
    whole.read(text)
    content = expected(text, most_leaders, most_followers)
    for leader in ((one, two) for one in range(4) for two in range(4)):
        assert table.after(leader) == whole.after(leader) == content.get(leader, [])


def trees(text: Sequence[int], shared: SharedTexts = NO_TEXTS, **settings: int) -> NgramTrees:
    (source,) = CachebackPolicy(follower=2, **settings).sources(text, shared, recall=True)
    assert isinstance(source, NgramTrees)
    return source


def paths(tree: SpeculationTree) -> list[tuple[int, ...]]:
    """The tokens from below the tip to each node, in the order in which the nodes grew."""
    by_id = dict[int, tuple[int, ...]]({tree.tip.id: ()})
    for node in tree.speculative():
        by_id[node.id] = (*by_id[node.parent or 0], node.token)
    return list(by_id.values())[1:]


def test_a_tree_has_the_followers_of_the_text_and_then_those_of_their_ends() -> None:
    text = (1, 2, 3, 4, 5, 1, 6, 3, 1)
    tree = SpeculationTree(text)
    trees(text).grow(tree, 100, 100)
    assert paths(tree)[:4] == [(6,), (6, 3), (2,), (2, 3)]
    assert paths(tree)[4:6] == [(6, 3, 4), (6, 3, 4, 5)], "what followed the newer row's end"


def test_a_tree_is_bounded_by_its_nodes_and_by_the_texts_end() -> None:
    text = (1, 2, 3) * 5
    tree, short = SpeculationTree(text), SpeculationTree(text)
    trees(text, nodes=5).grow(tree, 100, 100)
    assert paths(tree) == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 1), (1, 2, 3, 1, 2)]
    trees(text).grow(short, len(text) + 2, 100)
    assert paths(short) == [(1,), (1, 2)], "the token before the last one tells it"


def test_earlier_texts_fill_the_frozen_table_which_the_text_leaves_as_it_is() -> None:
    earlier = GrowingIndex((1, 8, 9))
    earlier.separate()
    earlier.extend((7, 1, 5))
    source = trees((4, 4, 1), SharedTexts(earlier))
    assert source.followers((1,)) == [(8, 9)], "no row goes over the gap between two texts"
    for token in (2, 3, 1):
        source.learn(0, token)
    assert source.followers((1,)) == [(2, 3), (8, 9)], "the dynamic table comes first"
