"""Laws of the speculation tree: nothing leaks, late is not lost, and both sides hold the same tree."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.errors import Code, LocalError, PeerError
from common.tree import Committed, Node, Place, SpeculationTree
from tests import wording

TOKENS = st.integers(0, 3)


def make_path(tree: SpeculationTree, tokens: tuple[int, ...], logprob: float = -0.5) -> list[Node]:
    nodes = [tree.tip]
    for token in tokens:
        nodes.append(tree.grow(nodes[-1], token, logprob))
    return nodes[1:]


def test_a_tree_needs_a_committed_token() -> None:
    with wording.raises(LocalError):
        SpeculationTree([])


def test_a_node_stands_one_position_below_its_parent_and_its_logprobs_add_up() -> None:
    tree = SpeculationTree((9,))
    a = tree.grow(tree.tip, 1, -0.25)
    b = tree.grow(a, 2, -0.5)
    assert (a.id, a.parent, a.position, a.path_logprob) == (2, 1, 1, -0.25)
    assert (b.id, b.parent, b.position, b.path_logprob) == (3, 2, 2, -0.75)
    assert tree.worth(b) == -0.75
    assert [node.id for node in tree.speculative()] == [2, 3]


def test_the_likeliest_path_follows_the_likeliest_child() -> None:
    tree = SpeculationTree((9,))
    assert tree.likeliest_path() == []
    make_path(tree, (1, 2), logprob=-1.0)
    make_path(tree, (3,), logprob=-0.1)
    assert [node.token for node in tree.likeliest_path()] == [3]
    tree.advance(1)
    assert [node.token for node in tree.likeliest_path()] == [2]


def test_the_better_promise_of_a_merged_node_counts_for_all_below_it() -> None:
    tree = SpeculationTree((9,))
    guess = tree.grow(tree.tip, 1, -2.0)
    below = tree.grow(guess, 2, -1.0)
    beside = tree.grow(tree.tip, 3, -2.0)
    assert tree.grow(tree.tip, 1, -0.5) is guess
    assert (guess.logprob, guess.path_logprob, below.logprob, below.path_logprob) == (-0.5, -0.5, -1.0, -1.5)
    assert beside.path_logprob == -2.0


def test_nothing_grows_below_a_node_that_is_not_live() -> None:
    tree = SpeculationTree((9,))
    dead, child = make_path(tree, (1, 2))
    tree.advance(5)
    for token in (child.token, 6):  # also where a child with the token had been
        with wording.raises(LocalError):
            tree.grow(dead, token, 0.0)


def test_a_commit_of_a_child_keeps_what_hangs_below_it() -> None:
    tree = SpeculationTree((9,))
    a, b, c = make_path(tree, (1, 2, 3))
    side = tree.grow(tree.tip, 5, -1.0)
    below = tree.grow(side, 6, -1.0)
    assert tree.advance(1) == (side, below)
    assert (tree.tip, tree.counts.accepted) == (a, 1)
    assert list(tree.speculative()) == [b, c]
    assert tree.committed == [9, 1]
    assert a.committed
    assert not b.committed


def test_a_commit_of_a_token_nobody_proposed_kills_every_node() -> None:
    tree = SpeculationTree((9,))
    nodes = make_path(tree, (1, 2, 3))
    assert tree.advance(4) == tuple(nodes)
    assert tree.counts.accepted == 0
    assert (tree.tip.token, tree.tip.position, tree.tip.parent) == (4, 1, None)
    assert tree.num_speculative == 0


def test_worth_counts_from_the_tip_of_either_side() -> None:
    tree = SpeculationTree((9,))
    _, b = make_path(tree, (1, 2), -0.5)
    assert tree.worth(b) == -1.0
    tree.advance(1)
    assert tree.worth(b) == -0.5, "what is committed is certain"
    tree.advance(8)
    after = tree.grow(tree.tip, 3, -0.125)
    assert tree.worth(tree.tip) == 0.0
    assert tree.worth(after) == -0.125


@pytest.mark.parametrize("position", [-1, 3])
def test_a_place_that_cannot_be_is_the_peers_fault(position: int) -> None:
    tree = SpeculationTree((9, 9, 9))
    with wording.raises(PeerError) as caught:
        tree.attach(Committed(position), 1, 0.0)
    assert caught.value.code is Code.OUT_OF_RANGE


CORRUPTIONS: dict[str, Callable[[SpeculationTree], object]] = {
    "a lost child": lambda tree: tree.live.pop(3),
    "a child that is not linked": lambda tree: tree.live[2].children.clear(),
    "a child elsewhere": lambda tree: setattr(tree.live[3], "position", 9),
    "a child of another name": lambda tree: setattr(tree.live[3], "token", 77),
    "a circle": lambda tree: tree.live[3].children.update({9: tree.tip.id}),
    "a wrong count": lambda tree: setattr(tree.counts, "pruned", 1),
    "a tip that is not the last token": lambda tree: tree.committed.append(5),
    "a tip that is not the first": lambda tree: tree.live.update({tree.tip.id: tree.live.pop(tree.tip.id)}),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_is_found(name: str) -> None:
    tree = SpeculationTree((9,))
    make_path(tree, (1, 2))
    tree.check_integrity()
    CORRUPTIONS[name](tree)
    with pytest.raises(LocalError):
        tree.check_integrity()


class TreeLife(RuleBasedStateMachine):
    """Every node ever placed stays a possible parent, as a hostile or slow edge would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = SpeculationTree((0,))
        self.places: list[Place] = [Committed(0)]
        self.arrived = 0

    @rule(data=st.data(), token=TOKENS, logprob=st.sampled_from([0.0, -0.1, -0.3, -0.7, -1.9]))
    def attach(self, data: st.DataObject, token: int, logprob: float) -> None:
        parent = data.draw(st.sampled_from(self.places[-12:]))
        self.places.append(self.tree.attach(parent, token, logprob))
        self.arrived += 1

    @rule(token=TOKENS)
    def advance(self, token: int) -> None:
        was, live = self.tree.tip_position, self.tree.num_speculative
        known = token in self.tree.tip.children
        died = self.tree.advance(token)
        assert self.tree.tip_position == was + 1
        assert len(died) + known == live - self.tree.num_speculative
        self.places.append(Committed(was + 1))

    @precondition(lambda self: self.tree.num_speculative)
    @rule(data=st.data())
    def advance_along_a_child(self, data: st.DataObject) -> None:
        self.tree.advance(data.draw(st.sampled_from(sorted(self.tree.tip.children))))

    @invariant()
    def nothing_leaks(self) -> None:
        tree, counts = self.tree, self.tree.counts
        tree.check_integrity()
        assert counts.grown == counts.accepted + counts.pruned + tree.num_speculative
        assert self.arrived == counts.grown + counts.merged + counts.folded + counts.late

    @invariant()
    def no_path_is_likelier_than_its_beginning(self) -> None:
        for node in self.tree.speculative():
            assert node.parent is not None
            parent = self.tree.live[node.parent]
            assert parent.id < node.id
            assert node.path_logprob == parent.path_logprob + node.logprob, "also after a merge"
            assert self.tree.worth(node) <= self.tree.worth(parent) <= 0.0


TestTreeLife = TreeLife.TestCase


def paths(tree: SpeculationTree) -> set[tuple[int, ...]]:
    """Token paths from the tip to every live node."""
    path_of: dict[int, tuple[int, ...]] = {tree.tip.id: ()}
    for node in tree.speculative():
        assert node.parent is not None
        path_of[node.id] = (*path_of[node.parent], node.token)
    return set(path_of.values())


class TwoTrees:
    """An edge's tree and a verifier's, with nodes and commits under way between them, each in order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.edge, self.verifier = SpeculationTree((0,)), SpeculationTree((0,))
        self.places: dict[int, Place] = {}  # edge's id -> the verifier's place
        self.up: list[tuple[Node, int | None]] = []  # a node, the anchor if its parent was the tip
        self.down: list[int] = []

    def grow(self) -> None:
        parent = self.random.choice(list(self.edge.live.values()))
        before = self.edge.counts.grown
        node = self.edge.grow(parent, self.random.randrange(3), -0.5)
        if self.edge.counts.grown > before:
            self.up.append((node, parent.position if parent is self.edge.tip else None))

    def arrive(self) -> None:
        if self.up:
            node, anchor = self.up.pop(0)
            assert node.parent is not None
            parent = Committed(anchor) if anchor is not None else self.places[node.parent]
            self.places[node.id] = self.verifier.attach(parent, node.token, node.logprob)

    def commit(self) -> None:
        token = self.random.randrange(3)
        self.verifier.advance(token)
        self.down.append(token)

    def learn(self) -> None:
        if self.down:
            self.edge.advance(self.down.pop(0))

    def settle(self) -> None:
        while self.up or self.down:
            self.arrive()
            self.learn()


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_both_sides_hold_the_same_tree_once_all_has_arrived(seed: int, length: int) -> None:
    trees = TwoTrees(seed)
    for _ in range(length):
        trees.random.choice([trees.grow, trees.grow, trees.arrive, trees.commit, trees.learn])()
        assert paths(trees.verifier) <= paths(trees.edge) or trees.down, "the edge is the one behind"
    trees.settle()
    assert trees.edge.committed == trees.verifier.committed
    assert paths(trees.edge) == paths(trees.verifier)
    for tree in (trees.edge, trees.verifier):
        tree.check_integrity()
