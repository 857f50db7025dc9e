"""Laws of the wire: ids count up in the order of sending, and the verifier rebuilds the tree sent."""

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.verify_session import VerifySession
from common.errors import LocalError
from common.messages import MAX_NODES, Open, Propose, Wait
from common.sampling import SamplingParams
from common.tree import Node, SpeculationTree
from edge_client.core.sent_nodes import Outgoing
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
