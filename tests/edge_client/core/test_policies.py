"""Laws of growth policies: parents first, never beyond the credit or the text, and each its own shape."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.messages import INITIAL_CREDIT
from common.tree import Node, SpeculationTree
from edge_client.core.policies import (
    GrowthPolicy,
    GrowthView,
    OffPolicy,
    SyncPolicy,
    TokenCandidate,
    make_policy,
)
from edge_client.core.policies.base import can_expand, expandable, sort_likeliest_first, unsent
from schemes.policies.chain import ChainPolicy
from schemes.policies.rounds import likeliest_first
from schemes.policies.tree import TreePolicy
from tests import wording

CANDIDATES = tuple(
    TokenCandidate(token, math.log(p)) for token, p in ((1, 0.6), (2, 0.2), (3, 0.1), (4, 0.02))
)


def make_view(last: int = 100, credit: int = INITIAL_CREDIT) -> GrowthView:
    return GrowthView(SpeculationTree((9, 9)), last_position=last, credit=credit, stream_up=True)


def draft(
    policy: GrowthPolicy, view: GrowthView, candidates: tuple[TokenCandidate, ...] = CANDIDATES
) -> list[int]:
    """One draft step as the session runs it; the ids of the rows."""
    rows = policy.expand(view)
    for node in rows:
        node.evaluated = True
        for child in policy.branch(view, node, candidates):
            view.tree.grow(node, child.token, child.logprob)
    return [node.id for node in rows]


def send(policy: GrowthPolicy, view: GrowthView) -> list[int]:
    """What the policy sends, noted as the session does; the tokens."""
    nodes = policy.send(view)
    for node in nodes:
        node.wire_id = node.id
    view.num_sent += len(nodes)
    return [node.token for node in nodes]


def commit(view: GrowthView, token: int) -> None:
    view.tree.advance(token)
    view.num_sent = sum(1 for node in view.tree.speculative() if node.wire_id)


@pytest.mark.parametrize("text", ["sync:7", "sync:block=7", "sync: block = 7,"])
def test_a_synchronous_block_is_named_with_its_length(text: str) -> None:
    policy = make_policy(text)
    assert isinstance(policy, SyncPolicy)
    assert policy.block == 7


def test_settings_are_named_one_by_one() -> None:
    policy = make_policy("tree:width=4,cut=0.01")
    assert isinstance(policy, TreePolicy)
    assert (policy._width, policy._max_children) == (4, 3)
    assert isinstance(policy._width, int)


@pytest.mark.parametrize("text", ["", "best", "Sync", ":4"])
def test_an_unknown_policy_is_refused_with_those_there_are(text: str) -> None:
    with wording.raises(UserError):
        make_policy(text)


MISUNDERSTOOD = (
    "tree:4 tree:width=2.5 tree:width=0 tree:depth=3 tree:cut=nan tree:max_children=0 tree:cut=1",
    "chain:max_depth=1e3 chain:cut= chain:cut=0 chain:cut=1 chain:max_depth=0",
    "sync:x sync:-1 sync:² sync:block=nan sync:0",
    "off:width=1",
    "adaptive:max_width=0 adaptive:max_live=0 adaptive:cut=0 adaptive:send=1 adaptive:cut=nan",
    "adaptive:max_steps_per_second=-1 adaptive:max_steps_per_second=nan",
)


@pytest.mark.parametrize("text", " ".join(MISUNDERSTOOD).split())
def test_a_setting_that_is_not_understood_is_the_users_to_change(text: str) -> None:
    with pytest.raises(UserError):
        make_policy(text)


def test_sync_drafts_a_block_one_by_one_sends_it_whole_and_waits() -> None:
    view, policy = make_view(), SyncPolicy(3)
    for number in range(3):
        assert send(policy, view) == []
        assert draft(policy, view) == [number + 1]
    assert draft(policy, view) == []
    assert send(policy, view) == [1, 1, 1]
    assert draft(policy, view) == [], "the verdict is awaited"
    assert send(policy, view) == []


def test_sync_goes_on_after_the_verdict() -> None:
    view, policy = make_view(), SyncPolicy(2)
    while draft(policy, view):
        pass
    send(policy, view)
    commit(view, 1)
    assert draft(policy, view) == [], "a node of the block is not decided yet"
    commit(view, 5)
    assert len(draft(policy, view)) == 1


@pytest.mark.parametrize(
    ("last", "credit", "block"), [(10, 64, 4), (5, 64, 4), (4, 64, 3), (2, 64, 1), (1, 64, 0), (10, 2, 2)]
)
def test_a_block_ends_where_the_text_or_the_credit_ends(last: int, credit: int, block: int) -> None:
    view, policy = make_view(last, credit), SyncPolicy(4)
    while draft(policy, view):
        pass
    assert send(policy, view) == [1] * block
    assert all(node.position <= last for node in view.tree.live.values())


def test_a_chain_grows_while_verdicts_travel_up_to_its_depth() -> None:
    view, policy = make_view(), ChainPolicy(cut=1e-6, max_depth=5)
    for _ in range(5):
        draft(policy, view)
        send(policy, view)
    assert draft(policy, view) == []
    assert [node.position for node in view.tree.speculative()] == [2, 3, 4, 5, 6]
    commit(view, 1)
    assert len(draft(policy, view)) == 1


def test_a_chain_stops_where_its_path_is_less_likely_than_the_cut() -> None:
    view, policy = make_view(), ChainPolicy(cut=0.2, max_depth=64)
    while draft(policy, view):
        pass
    # 0.6, 0.36 and 0.216 are drafted on, 0.1296 is not
    assert view.tree.num_speculative == 4
    commit(view, 1)
    assert len(draft(policy, view)) == 1, "seen from the new tip it is likelier"


def test_a_tree_drafts_the_likeliest_nodes_first() -> None:
    view, policy = make_view(credit=1000), TreePolicy(width=2, max_children=3, cut=0.01)
    assert draft(policy, view) == [1]  # children 2, 3, 4 at 0.6, 0.2, 0.1
    assert draft(policy, view) == [2, 3]  # children 5, 6, 7 at .36, .12, .06 and 8, 9, 10 at .12, .04, .02
    assert draft(policy, view) == [5, 6]  # 0.36, then 0.12, where the smaller id goes first


def test_a_tree_has_no_more_children_than_set_and_none_below_the_cut() -> None:
    view = make_view()
    wide = TreePolicy(max_children=2, cut=0.01)
    assert [c.token for c in wide.branch(view, view.tree.tip, CANDIDATES)] == [1, 2]
    strict = TreePolicy(max_children=4, cut=0.15)
    assert [c.token for c in strict.branch(view, view.tree.tip, CANDIDATES)] == [1, 2]
    below = view.tree.grow(view.tree.tip, 1, math.log(0.6))
    assert [c.token for c in strict.branch(view, below, CANDIDATES)] == [1]


policies = st.sampled_from(
    [
        lambda: TreePolicy(width=3, max_children=3, cut=0.005),
        lambda: ChainPolicy(cut=0.01, max_depth=9),
        lambda: SyncPolicy(3),
        OffPolicy,
    ]
)
chances = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=4)


def check_sent(view: GrowthView, nodes: list[Node]) -> None:
    known = {node.id for node in view.tree.live.values() if node.wire_id} | {view.tree.tip.id}
    for node in nodes:
        assert not node.wire_id, "sent once"
        assert node.parent in known, "its parent was sent before"
        known.add(node.id)
    assert len(nodes) <= max(0, view.credit_left)


@given(policies, st.lists(st.tuples(chances, st.integers(0, 40), st.integers(0, 6)), max_size=15))
def test_parents_go_first_and_the_credit_and_the_end_of_the_text_are_kept(
    make: type[OffPolicy], steps: list[tuple[list[float], int, int]]
) -> None:
    policy, view = make(), make_view(last=9)
    for shares, credit, token in steps:
        total = sum(shares) + 0.01
        ranked = sorted((math.log(share / total) for share in shares), reverse=True)
        draft(policy, view, tuple(TokenCandidate(i, logprob) for i, logprob in enumerate(ranked)))
        check_sent(view, list(policy.send(view)))
        send(policy, view)
        if token < 4 and view.tree.tip_position < view.last_position:
            commit(view, token)
        view.credit = credit
        assert all(node.position <= view.last_position for node in view.tree.live.values())


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from((0.0, -0.5, -1.0))), max_size=30))
def test_nodes_in_order_of_ids_are_sorted_likeliest_first(nodes: list[tuple[int, float]]) -> None:
    view = make_view()
    for token, (parent, logprob) in enumerate(nodes):
        live = list(view.tree.live.values())
        view.tree.grow(live[parent % len(live)], token, logprob)
    found = list(view.tree.live.values())
    sort_likeliest_first(found)
    assert found == sorted(view.tree.live.values(), key=likeliest_first)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans(), st.booleans()), max_size=30))
def test_every_unsent_and_every_expandable_node_is_found(nodes: list[tuple[int, bool, bool, bool]]) -> None:
    view = make_view(last=6)
    for token, (parent, evaluated, busy, sent) in enumerate(nodes):
        live = list(view.tree.live.values())
        node = view.tree.grow(live[parent % len(live)], token, -0.5)
        node.evaluated, node.busy, node.wire_id = evaluated, busy, node.id if sent else 0
        view.num_sent += sent
    assert unsent(view) == [node for node in view.tree.speculative() if not node.wire_id]
    assert expandable(view) == [node for node in view.tree.live.values() if can_expand(view, node)]
