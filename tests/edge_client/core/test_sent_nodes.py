"""Laws of the wire: ids count up in the order of sending, and the verifier rebuilds the tree sent."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.verify_session import VerifySession
from common.acceptance import Draft
from common.errors import LocalError
from common.messages import MAX_NODES, Open, Propose, Wait
from common.sampling import SamplingParams
from common.tree import Node, SpeculationTree
from edge_client.core.effects import Expansion
from edge_client.core.sent_nodes import Outgoing, Untold
from schemes.rules.drawing import untold
from tests import wording

PROMPT = (7, 8, 9)


def chain(tree: SpeculationTree, tokens: tuple[int, ...]) -> list[Node]:
    nodes = [tree.tip]
    for token in tokens:
        nodes.append(tree.grow(nodes[-1], token, -0.5))
    return nodes[1:]


def verifier() -> VerifySession:
    request = Open(PROMPT, SamplingParams(max_tokens=500), b"")
    return VerifySession(1, request, 100, frozenset(), max_live=1000, now=0.0)


def test_a_wait_is_told_with_nodes_and_again_when_it_has_changed_much() -> None:
    tree, outgoing = SpeculationTree(PROMPT), Outgoing()
    nodes = chain(tree, (1, 2, 3, 4))
    waits = [Wait(20_000, 9_000), Wait(21_000, 9_500), Wait(21_000, 4_000), Wait()]
    assert outgoing.propose(tree, [], 0.0, wait=waits[0]).wait is None
    told = [
        outgoing.propose(tree, [node], 0.0, wait=wait).wait for node, wait in zip(nodes, waits, strict=True)
    ]
    assert told == [waits[0], None, waits[2], Wait()]


def test_a_tree_names_each_parent_by_how_many_ids_it_is_back() -> None:
    tree = SpeculationTree(PROMPT)
    a, b = chain(tree, (1, 2))
    c = tree.grow(tree.tip, 3, -1.0)
    d = tree.grow(a, 4, -1.0)
    e = tree.grow(c, 5, -1.0)
    message = Outgoing().propose(tree, [a, b, c, d, e], 0.0)
    assert message.parent_deltas == (0, 1, 0, 3, 2)
    assert message.anchor == 2


def test_a_child_of_an_accepted_tip_is_named_by_anchor_though_the_tip_has_a_number() -> None:
    tree, outgoing = SpeculationTree(PROMPT), Outgoing()
    a, b = chain(tree, (1, 2))
    outgoing.propose(tree, [a], 0.0)
    tree.advance(1)
    outgoing.committed(1)
    assert outgoing.propose(tree, [b], 0.0) == Propose((2,), b"\x08", (), anchor=3, seen_advance=1)


def test_an_answer_tells_when_the_newest_message_it_knew_had_left_and_only_once() -> None:
    tree, outgoing = SpeculationTree(PROMPT), Outgoing(7.0)
    assert outgoing.opened_at == 7.0
    for now in (10.0, 11.0, 12.0):
        outgoing.propose(tree, [], now)
    assert outgoing.left_at(0) is None
    assert [outgoing.left_at(2) for _ in range(2)] == [11.0, None]
    assert outgoing.left_at(1) is None  # older than what is known
    assert outgoing.left_at(4) is None  # never sent: the third cannot be told from it any more
    assert outgoing.left_at(3) is None


def test_a_child_before_its_parent_is_our_own_fault() -> None:
    tree = SpeculationTree(PROMPT)
    a, b = chain(tree, (1, 2))
    with wording.raises(LocalError):
        Outgoing().propose(tree, [b, a], 0.0)


def paths(tree: SpeculationTree, nodes: list[Node]) -> list[tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {tree.tip.id: ()}
    for node in nodes:
        assert node.parent is not None
        found[node.id] = (*found[node.parent], node.token)
    return [found[node.id] for node in nodes]


@given(
    nodes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3)), max_size=60),
    cuts=st.lists(st.integers(1, 12), max_size=12),
    accepted=st.booleans(),
)
def test_the_verifier_rebuilds_any_tree_from_its_messages(
    nodes: list[tuple[int, int]], cuts: list[int], accepted: bool
) -> None:
    tree, session, outgoing = SpeculationTree(PROMPT), verifier(), Outgoing()
    for parent, token in nodes:
        live = list(tree.live.values())
        tree.grow(live[parent % len(live)], token, -0.0625 * (parent % 5))
    waiting = list(tree.speculative())
    for cut in [*cuts, MAX_NODES]:
        session.receive(outgoing.propose(tree, waiting[:cut], 0.0), 0.0)
        waiting = waiting[cut:]
    sent, received = list(tree.speculative()), list(session.tree.speculative())
    assert paths(session.tree, received) == paths(tree, sent)
    assert [node.logprob for node in received] == [node.logprob for node in sent]
    assert [node.wire_id for node in sent] == list(range(1, len(sent) + 1))
    token = sent[0].token if sent and accepted else 4
    assert [n.token for n in tree.advance(token)] == [n.token for n in session.tree.advance(token)]
    grown = tree.grow(tree.tip, 5, -0.5)
    session.receive(outgoing.propose(tree, [grown], 1), 0.0)
    assert set(paths(session.tree, list(session.tree.speculative()))) == set(
        paths(tree, list(tree.speculative()))
    )


# Drawn drafts -----------------------------------------------------------------------------------------

HALVES, CERTAIN = Draft((1, 4), (128, 128)), Draft((2,), (256,))


def drawn_tree() -> tuple[SpeculationTree, list[Node], dict[int, Expansion], Untold]:
    """Two children of the tip, drawn in the order 4, 1, and one below the first."""
    tree = SpeculationTree(PROMPT)
    first, second = (tree.grow(tree.tip, token, -0.5) for token in (4, 1))
    below = tree.grow(first, 2, -0.5)
    drawn = {
        tree.tip.id: Expansion(tree.tip.id, (4, 1), (-0.5, -0.5), HALVES),
        first.id: Expansion(first.id, (2,), (-0.5,), CERTAIN),
    }
    return tree, [first, second, below], drawn, partial(untold, tree, drawn)


def test_a_distribution_travels_once_with_the_first_child_drawn_from_it() -> None:
    tree, (first, second, below), _, told = drawn_tree()
    outgoing = Outgoing()
    assert outgoing.propose(tree, [first, below], 0.0, told).drafts == (HALVES, CERTAIN)
    assert outgoing.propose(tree, [second], 0.0, told).drafts == ()


def test_on_a_new_stream_it_travels_again() -> None:
    tree, nodes, _, told = drawn_tree()
    first = Outgoing().propose(tree, nodes, 0.0, told)
    for node in nodes:
        node.wire_id = 0
    assert Outgoing().propose(tree, nodes, 0.0, told) == first
    assert first.drafts == (HALVES, None, CERTAIN)


def test_a_child_is_never_sent_before_one_that_was_drawn_before_it() -> None:
    tree, (_, second, _), _, told = drawn_tree()
    with pytest.raises(LocalError, match="sent before one that was drawn before it"):
        Outgoing().propose(tree, [second], 0.0, told)


def test_a_child_that_was_not_drawn_is_not_sent_where_drafts_are() -> None:
    tree, nodes, drawn, told = drawn_tree()
    del drawn[tree.tip.id]
    with pytest.raises(LocalError, match="not known what it was drawn from"):
        Outgoing().propose(tree, nodes, 0.0, told)
